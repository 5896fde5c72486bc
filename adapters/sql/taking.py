"""pending -> running: the claim is a conditional UPDATE on every database, so two that meet can't both win."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Connection, Row, any_, func

from .due import oldest_due
from .statements import BY_LIST, TAKE
from .tables import PENDING, jobs

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Select

__all__ = ["Take", "take_by_array", "take_by_list", "take_locked"]

Take: TypeAlias = Callable[[Connection, Mapping[str, Any]], Sequence[Row[Any]]]
"""Take up to `most` jobs of `carrier` for `holder`, under `receipt` for `lease` seconds; return them oldest first."""

_CONTENT = ("seq", "id", "body", "headers", "ordering_key", "attempts", "max_attempts", "available_at")
_place = attrgetter("available_at", "seq")


def _take_by_update(these: Callable[[Select[Any]], ColumnElement[bool]], *, in_order: bool) -> Take:
    chosen = these(oldest_due("seq", in_order=in_order))
    statement = TAKE.where(chosen, jobs.c.status == PENDING).returning(*(jobs.c[name] for name in _CONTENT))
    return lambda connection, request: sorted(connection.execute(statement, request).all(), key=_place)


def take_by_list(*, in_order: bool) -> Take:
    """SQLite: one statement, under the one write lock there is."""
    return _take_by_update(jobs.c.seq.in_, in_order=in_order)


def take_by_array(*, in_order: bool) -> Take:
    """PostgreSQL: one statement. The array is made once, before; a join or an IN might be planned to run its LIMIT more than once, or to scan it all."""
    return _take_by_update(lambda due: jobs.c.seq == any_(func.array(due.scalar_subquery())), in_order=in_order)


def take_locked(*, in_order: bool) -> Take:
    """MySQL, MariaDB: two statements, of which the first has locked what the second claims."""
    due = oldest_due(*_CONTENT, in_order=in_order)

    def take(connection: Connection, request: Mapping[str, Any]) -> Sequence[Row[Any]]:
        rows = connection.execute(due, request).all()
        if rows:
            connection.execute(BY_LIST.take, {**request, "seqs": [row.seq for row in rows]})
        return rows

    return take
