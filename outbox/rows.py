"""The rows of the outbox: how a job is written down, and how a relay turns the row into the message it sends."""

from __future__ import annotations

import zlib
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from sqlalchemy import Double, bindparam, func, insert, literal_column, select

from postroom.adapters.seam import Message
from postroom.adapters.sql.types import constant, now

from .envelope import COPY, ENQUEUED_AT, REPLAYS
from .tables import CHANNEL, LANES, outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection, Dialect, Insert, Row

    from .envelope import Envelope

__all__ = ["MESSAGE", "NewRow", "build_row", "insert_rows", "lane_of", "message_of", "restamped", "stamp_of", "to_message", "wake"]

NewRow: TypeAlias = dict[str, Any]
"""The parameters of one row to insert; make it with `build_row`."""

MESSAGE = (outbox.c.id, outbox.c.queue, outbox.c.body, outbox.c.headers, outbox.c.ordering_key, outbox.c.enqueued_at)
"""The columns that `message_of` needs."""

_INSERT = (
    insert(outbox)
    .inline()
    .values(
        status=constant("pending"),
        attempts=literal_column("0"),
        enqueued_at=func.coalesce(bindparam("first_enqueued_at", type_=Double), now()),
        available_at=now() + bindparam("delay", type_=Double),
    )
)
_WAKE = select(func.pg_notify(constant(CHANNEL), constant("")))
_INSERT_AND_WAKE = _INSERT.returning(func.pg_notify(constant(CHANNEL), constant("")))  # no round trip of its own, and only a commit sends it

_KEYS = ("id", "queue", "type", "key", "ordering_key", "lane", "ordered", "body", "headers")
_BARE_DRIVERS = frozenset({"pysqlite", "psycopg"})
"""Drivers that take all values of a row as they are. Elsewhere SQLAlchemy converts them, at each execution; here its SQL is made once, and kept."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.decode


def build_row(envelope: Envelope, body: bytes, *, ordered: bool, delay: float = 0.0) -> NewRow:
    """Return the row that makes `envelope` and `body` a message once it is committed and `delay` seconds have passed.

    `ordered` says that the queue is declared so.
    """
    return {
        "id": envelope.id,
        "queue": envelope.queue,
        "type": envelope.type,
        "key": envelope.key,
        "ordering_key": envelope.ordering_key,
        "lane": lane_of(envelope.ordering_key),
        "ordered": ordered,
        "body": body,
        "headers": _pack(envelope.to_headers()),
        "first_enqueued_at": envelope.enqueued_at or None,
        "delay": delay,
    }


def insert_rows(connection: Connection, rows: Sequence[NewRow], *, notify: bool = True) -> None:
    """Insert rows, in order, in the transaction of `connection`; they exist for others when it commits. One statement for one row.

    `notify` wakes the relays on PostgreSQL at the commit; other databases have nothing of the kind.
    """
    if len(rows) == 1:
        _insert_one(connection, rows[0], notify=notify)
    elif rows:
        connection.execute(_INSERT, rows)
        if notify:
            wake(connection)


def wake(connection: Connection) -> None:
    """Wake the relays on PostgreSQL when the transaction of `connection` commits; other databases have nothing of the kind."""
    if connection.dialect.name == "postgresql":
        connection.execute(_WAKE)


def message_of(row: Row[Any]) -> Message:
    """Return the message of a row that has the columns `MESSAGE`."""
    return to_message(row.id, row.queue, row.body, row.headers, row.ordering_key, row.enqueued_at)


def to_message(job_id: str, queue: str, body: bytes, packed: bytes, ordering_key: str, enqueued_at: float) -> Message:
    """Return the message of the values of the columns `MESSAGE`: what was encoded at enqueue, and the time that the database gave it."""
    headers = _unpack(packed)
    headers[ENQUEUED_AT] = repr(enqueued_at)
    return Message(id=job_id, queue=queue, body=body, headers=headers, ordering_key=ordering_key)


def stamp_of(packed: bytes) -> tuple[int, int]:
    """Return which message of its job the row with these headers is: the replay and the copy in it. The latest is the greatest."""
    headers = _unpack(packed)
    return headers[REPLAYS], headers[COPY]


def restamped(packed: bytes, *, replays: int, copy: int) -> bytes:
    """Return the headers of a row as those of another message of the same job."""
    return _pack({**_unpack(packed), REPLAYS: replays, COPY: copy})


def lane_of(ordering_key: str) -> int:
    """Return the lane of an ordering key: the same in every process and version."""
    return zlib.crc32(ordering_key.encode()) % LANES


def _insert_one(connection: Connection, row: NewRow, *, notify: bool) -> None:
    dialect = connection.dialect
    statement = _INSERT_AND_WAKE if notify and dialect.name == "postgresql" else _INSERT
    if dialect.driver in _BARE_DRIVERS and "schema_translate_map" not in connection.get_execution_options():
        sql, values = _bare(dialect, statement)
        connection.exec_driver_sql(sql, values(row))
    else:
        connection.execute(statement, row)


@lru_cache(maxsize=64)
def _bare(dialect: Dialect, statement: Insert) -> tuple[str, Callable[[NewRow], Any]]:
    """The statement in the words of a driver, and how a row becomes its parameters."""
    compiled = statement.compile(dialect=dialect, column_keys=_KEYS)
    return str(compiled), itemgetter(*compiled.positiontup) if compiled.positiontup else dict
