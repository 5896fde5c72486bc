"""none -> pending, for many jobs at once. A job whose queue holds its id already is left out: it was published twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from sqlalchemy import Connection, Double, Integer, LargeBinary, String, bindparam, func, literal_column, select
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.dialects.postgresql import ARRAY

from .tables import jobs

if TYPE_CHECKING:
    from sqlalchemy import Insert

__all__ = ["CHANNEL", "InsertJobs", "NewJob", "insert_by_arrays", "insert_into_mysql", "insert_into_sqlite"]

CHANNEL = "postroom_jobs"
"""What PostgreSQL notifies when new jobs are committed."""


class NewJob(NamedTuple):
    """What differs from one new row to the next."""

    queue: str
    id: str
    body: bytes
    headers: bytes
    ordering_key: str | None
    line: str | None
    max_attempts: int
    enqueued_at: float
    due_at: float


InsertJobs: TypeAlias = Callable[[Connection, Sequence[NewJob]], None]
"""Insert these, in order."""

_TYPES = dict(zip(NewJob._fields, (String, String, LargeBinary, LargeBinary, String, String, Integer, Double, Double), strict=True))
_NEW = {"status": "pending", "attempts": 0, "replays": 0}


def _arrays() -> Insert:
    new = func.unnest(*(bindparam(name, type_=ARRAY(kind)) for name, kind in _TYPES.items())).table_valued(*_TYPES, name="new")
    woken = select(func.pg_notify(CHANNEL, "")).scalar_subquery().is_not(None)  # once, and without a round trip of its own
    rows = select(*new.c, new.c.due_at, *(literal_column(repr(value)) for value in _NEW.values())).where(woken)
    return postgresql.insert(jobs).from_select([*_TYPES, "available_at", *_NEW], rows).on_conflict_do_nothing()


_BY_ARRAYS = _arrays()
_INTO_SQLITE = sqlite.insert(jobs).on_conflict_do_nothing()
_INTO_MYSQL = mysql.insert(jobs).on_duplicate_key_update(id=jobs.c.id)  # no INSERT IGNORE: that ignores much more than the duplicate


def insert_by_arrays(connection: Connection, rows: Sequence[NewJob]) -> None:
    """PostgreSQL: one statement, one array for each column, whatever the number of rows."""
    connection.execute(_BY_ARRAYS, dict(zip(_TYPES, map(list, zip(*rows, strict=True)), strict=True)))


def insert_into_sqlite(connection: Connection, rows: Sequence[NewJob]) -> None:
    """SQLite: no network, so one statement for each row is as good."""
    connection.execute(_INTO_SQLITE, [_row(row) for row in rows])


def insert_into_mysql(connection: Connection, rows: Sequence[NewJob]) -> None:
    """MySQL, MariaDB: all values are parameters, so that the driver makes one INSERT of many rows."""
    connection.execute(_INTO_MYSQL, [_row(row) for row in rows])


def _row(new: NewJob) -> dict[str, Any]:
    return {**new._asdict(), "available_at": new.due_at, **_NEW}
