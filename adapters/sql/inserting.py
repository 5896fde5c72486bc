"""none -> pending, for many jobs at once. A job whose queue holds its id already is left out: it was published twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from sqlalchemy import Column, Connection, Double, Integer, String, bindparam, cast, func, literal_column, select
from sqlalchemy.dialects import mysql, postgresql, sqlite

from .tables import jobs

if TYPE_CHECKING:
    from sqlalchemy import Insert
    from sqlalchemy.types import TypeEngine

__all__ = ["CHANNEL", "InsertJobs", "NewJob", "insert_as_json", "insert_into_mysql", "insert_into_sqlite"]

CHANNEL = "postroom_jobs"
"""What PostgreSQL notifies when new jobs are committed."""


class NewJob(msgspec.Struct, frozen=True):
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

_SAME_ID = ["queue", "id"]
_NEW = {"status": "pending", "attempts": 0, "replays": 0}


def _from_json() -> Insert:
    numbers: dict[str, TypeEngine[Any]] = {"max_attempts": Integer(), "enqueued_at": Double(), "due_at": Double()}
    columns = [Column(name, numbers.get(name, String())) for name in NewJob.__struct_fields__]
    rows = cast(bindparam("rows", type_=String), postgresql.JSON)
    new = func.json_to_recordset(rows).table_valued(*columns, name="new").render_derived(with_types=True)
    values = {name: func.decode(value, "base64") if name in {"body", "headers"} else value for name, value in new.c.items()}
    values |= {"available_at": new.c.due_at} | {name: literal_column(repr(value)) for name, value in _NEW.items()}
    woken = select(func.pg_notify(CHANNEL, "")).scalar_subquery().is_not(None)  # once, and without a round trip of its own
    return postgresql.insert(jobs).from_select([*values], select(*values.values()).where(woken)).on_conflict_do_nothing(index_elements=_SAME_ID)


_AS_JSON = _from_json()
_INTO_SQLITE = sqlite.insert(jobs).on_conflict_do_nothing(index_elements=_SAME_ID)
_INTO_MYSQL = mysql.insert(jobs).on_duplicate_key_update(id=jobs.c.id)  # no INSERT IGNORE: that ignores much more than the duplicate


def insert_as_json(connection: Connection, rows: Sequence[NewJob]) -> None:
    """PostgreSQL: one statement with one parameter, whatever the number of rows: to quote value by value costs the client four times as much."""
    connection.execute(_AS_JSON, {"rows": msgspec.json.encode(rows).decode()})


def insert_into_sqlite(connection: Connection, rows: Sequence[NewJob]) -> None:
    """SQLite: no network, so one statement for each row is as good."""
    connection.execute(_INTO_SQLITE, [_row(new) for new in rows])


def insert_into_mysql(connection: Connection, rows: Sequence[NewJob]) -> None:
    """MySQL, MariaDB: all values are parameters, so that the driver makes one INSERT of many rows."""
    connection.execute(_INTO_MYSQL, [_row(new) for new in rows])


def _row(new: NewJob) -> dict[str, Any]:
    return {**msgspec.structs.asdict(new), "available_at": new.due_at, **_NEW}
