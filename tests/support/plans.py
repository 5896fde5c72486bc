"""The plans of what the code under test asks a database, as the database tells them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event, text

__all__ = ["analyze", "plans_of"]

_ANALYZE = {"postgresql": "ANALYZE", "mysql": "ANALYZE TABLE", "sqlite": "ANALYZE"}


@contextmanager
def plans_of(engine: Engine, statements: str) -> Iterator[list[str]]:
    """The plans of the statements in which this pattern is found, of each before it is run."""
    plans: list[str] = []
    explain = "EXPLAIN QUERY PLAN " if engine.dialect.name == "sqlite" else "EXPLAIN "

    def note(_connection: object, cursor: Any, statement: str, parameters: Any, *_: object) -> None:
        if re.search(statements, statement):
            cursor.execute(explain + statement, parameters)
            plans.append("\n".join(" ".join(map(str, row)) for row in cursor.fetchall()))

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield plans
    finally:
        event.remove(engine, "before_cursor_execute", note)


def analyze(engine: Engine, *tables: str) -> None:
    """Make the statistics of these tables fresh."""
    which = "" if engine.dialect.name == "sqlite" else ", ".join(tables)
    with engine.begin() as connection:
        connection.execute(text(f"{_ANALYZE[engine.dialect.name]} {which}"))
