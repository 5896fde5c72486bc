"""pending -> running: the claim is a conditional UPDATE on every database, so two that meet can't both win."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from sqlalchemy import Connection, Row, any_, func

from .content import CONTENT
from .due import next_in_line, oldest
from .statements import BY_LIST, TAKE, UNHELD
from .tables import jobs

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Select

__all__ = ["Take", "Takes", "take_by_array", "take_by_list", "take_locked"]

Take: TypeAlias = Callable[[Connection, Mapping[str, Any]], Sequence[Row[Any]]]
"""Take up to `most` jobs of `carrier` for `holder`, under `receipt` for `lease` seconds; return them oldest first."""


class Takes(NamedTuple):
    """For a queue, and for one that is ordered."""

    plain: Take
    in_order: Take


_COLUMNS = (*CONTENT, "available_at")
_place = attrgetter("available_at", "seq")


def _update_returning(these: Callable[[Select[Any]], ColumnElement[bool]]) -> Takes:
    def take(due: Select[Any]) -> Take:
        statement = TAKE.where(these(due), UNHELD).returning(*(jobs.c[name] for name in _COLUMNS))
        return lambda connection, request: sorted(connection.execute(statement, request).all(), key=_place)

    return Takes(plain=take(oldest("seq")), in_order=_first_that_finds(*map(take, next_in_line("seq"))))


def take_by_list() -> Takes:
    """SQLite: one statement, under the one write lock there is."""
    return _update_returning(jobs.c.seq.in_)


def take_by_array() -> Takes:
    """PostgreSQL: one statement. The array is made once, beforehand: an IN or a join might run the LIMIT again and again, or scan all."""
    return _update_returning(lambda due: jobs.c.seq == any_(func.array(due.scalar_subquery())))


def take_locked() -> Takes:
    """MySQL, MariaDB: two statements, of which the first has locked what the second claims."""
    return Takes(plain=_lock_and_take(oldest(*_COLUMNS)), in_order=_first_that_finds(*map(_lock_and_take, next_in_line(*_COLUMNS))))


def _lock_and_take(due: Select[Any]) -> Take:
    def take(connection: Connection, request: Mapping[str, Any]) -> Sequence[Row[Any]]:
        rows = connection.execute(due, request).all()
        if rows:
            connection.execute(BY_LIST.take, {**request, "seqs": [row.seq for row in rows]})
        return rows

    return take


def _first_that_finds(near: Take, anywhere: Take) -> Take:
    return lambda connection, request: near(connection, request) or anywhere(connection, request)
