"""The next rows to send: a plain SELECT, for the lanes already say who may send them.

Rows leave oldest due first. A row whose publish must be tried again waits for its `retry_at`, and the later rows of its ordering key in its queue
wait for it (`holds`); nobody else does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import ARRAY, BigInteger, ColumnElement, SmallInteger, and_, any_, bindparam, case, func, literal_column, or_, select, true

from postroom.adapters.sql.engine import reading
from postroom.adapters.sql.transaction import transact
from postroom.adapters.sql.types import constant, now

from .lanes import Tenure
from .rows import MESSAGE, message_of
from .tables import outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Connection, Engine, Row, Select

    from postroom.adapters.seam import Message

    from .options import RelayOptions

__all__ = ["Batch", "Due", "Line", "Place", "among", "due_query"]

INLINE = 16 * 1024
"""Payloads up to this size (bytes) come with their rows; larger ones are fetched when it is known how many fit into memory."""
RESCAN = 1.0
"""While there is a backlog, the line is read from its very beginning at least this often (seconds)."""

Place: TypeAlias = tuple[str, str]
"""Whom a row may hold back: the rows of its queue with its ordering key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A row that may be sent now, with the message it is. `attempts` counts the broker's earlier answers of "not now"."""

    seq: int
    message: Message
    place: Place
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The rows of one round in the order in which they leave, and whether there may be more behind them."""

    rows: Sequence[Due] = ()
    more: bool = False


def among(column: ColumnElement[int], name: str, dialect: str) -> ColumnElement[bool]:
    """Whether `column` is one of the list bound to `name`: on PostgreSQL one array, so that the statement stays the same for every length."""
    if dialect == "postgresql":
        kind = SmallInteger if isinstance(column.type, SmallInteger) else BigInteger
        return column == any_(bindparam(name, type_=ARRAY(kind)))
    return column.in_(bindparam(name, expanding=True))


# Constants are written out in these statements: a partial index is no use to a plan that does not know them.
_PENDING = outbox.c.status == constant("pending")
_SIZE = func.length(outbox.c.body).label("size")
_SMALL = case((func.length(outbox.c.body) <= literal_column(str(INLINE)), outbox.c.body)).label("body")
_COLUMNS = (outbox.c.seq, outbox.c.attempts, outbox.c.available_at, _SIZE, _SMALL, *(column for column in MESSAGE if column is not outbox.c.body))
_HOLDER = outbox.alias("holder")
# A scalar subquery and not an EXISTS: one look into a nearly empty index for each row, which no planner turns into a join of all with all.
_FIRST_HOLDER = (
    select(_HOLDER.c.seq)
    .where(
        _HOLDER.c.holds == outbox.c.ordering_key,
        _HOLDER.c.queue == outbox.c.queue,
        _HOLDER.c.seq != outbox.c.seq,
        or_(  # of several that hold one key, the first may go
            outbox.c.holds.is_(None),
            _HOLDER.c.available_at < outbox.c.available_at,
            and_(_HOLDER.c.available_at == outbox.c.available_at, _HOLDER.c.seq < outbox.c.seq),
        ),
    )
    .limit(literal_column("1"))
    .scalar_subquery()
)
_IS_FREE = func.coalesce(_FIRST_HOLDER, 0) < 1  # not IS NULL: PostgreSQL takes that for so unlikely that it prepares to read the whole line
_FRESH = and_(outbox.c.retry_at.is_(None), outbox.c.available_at >= bindparam("start"), outbox.c.available_at <= now())
_AGAIN = outbox.c.retry_at <= now()


def due_query(waiting: ColumnElement[bool], lanes: ColumnElement[bool]) -> Select[Any]:
    """Up to `limit` of the rows that are `waiting` in `lanes` and held by none, in the order of the index."""
    query = select(*_COLUMNS).where(_PENDING, waiting, lanes, _IS_FREE).order_by(outbox.c.retry_at, outbox.c.available_at, outbox.c.seq)
    return query.limit(bindparam("limit", type_=BigInteger, literal_execute=True))


_MINE = {dialect: among(outbox.c.lane, "lanes", dialect) for dialect in ("postgresql", "other")}
_FRESH_IN = {dialect: due_query(_FRESH, mine) for dialect, mine in _MINE.items()}
_AGAIN_IN = {dialect: due_query(_AGAIN, mine) for dialect, mine in _MINE.items()}
_FRESH_ALL = due_query(_FRESH, true())
_AGAIN_ALL = due_query(_AGAIN, true())
_BODIES = select(outbox.c.seq, outbox.c.body).where(outbox.c.seq.in_(bindparam("seqs", expanding=True)))


class Line:
    """The line of due rows as one relay walks along it, batch by batch.

    What was sent leaves dead index entries behind until the database cleans up, and with them the beginning of a long line gets slow to read. So
    after a full batch the next one is read from where that one ended, and the whole line again once in a while: a row that was committed
    late, or that is held no more, waits that long at most. A batch that is not full always comes from the whole line.
    """

    def __init__(self, engine: Engine, options: RelayOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = reading(engine)
        self._dialect = engine.dialect.name if engine.dialect.name in _MINE else "other"
        self._options = options
        self._clock = clock
        self._tenure = Tenure(relay="")
        self._start = 0.0
        self._rescan_at = 0.0

    def next(self, tenure: Tenure) -> Batch:
        """Return the next batch in these lanes. One short read transaction; raises Unavailable."""
        if not tenure.lanes:
            return Batch()
        if tenure != self._tenure or self._clock() >= self._rescan_at:
            self.restart()
        self._tenure = tenure
        return transact(self._engine, self._read)

    def restart(self) -> None:
        """Rows may be left behind: read the next batch from the beginning of the line."""
        self._start = 0.0

    def anything_due(self) -> bool:
        """Whether a row is due in any lane, whoever holds it. Raises Unavailable."""
        values = {"start": 0.0, "limit": 1}
        return transact(self._engine, lambda connection: any(connection.execute(query, values).first() for query in (_FRESH_ALL, _AGAIN_ALL)))

    def _read(self, connection: Connection) -> Batch:
        again = self._select(connection, _AGAIN_ALL, _AGAIN_IN, -(-self._options.batch // 2))  # never more than half, so that it starves nobody
        fresh = self._fresh(connection)
        rows = sorted((*again, *fresh), key=attrgetter("available_at", "seq")) if again else fresh
        chosen = _fitting(rows[: self._options.batch], self._options.batch_bytes)
        more = len(fresh) == self._options.batch or len(chosen) < len(rows)
        self._start = chosen[-1].available_at if more else 0.0
        return Batch(rows=_dues(connection, chosen), more=more)

    def _fresh(self, connection: Connection) -> Sequence[Row[Any]]:
        if self._start:
            rows = self._select(connection, _FRESH_ALL, _FRESH_IN, self._options.batch)
            if len(rows) == self._options.batch:
                return rows
        return self._whole(connection)

    def _whole(self, connection: Connection) -> Sequence[Row[Any]]:
        self.restart()
        began = self._clock()
        rows = self._select(connection, _FRESH_ALL, _FRESH_IN, self._options.batch)
        ended = self._clock()
        self._rescan_at = ended + max(RESCAN, 10 * (ended - began))
        return rows

    def _select(self, connection: Connection, whole: Select[Any], some: dict[str, Select[Any]], limit: int) -> Sequence[Row[Any]]:
        values: dict[str, Any] = {"start": self._start, "limit": limit}
        if self._tenure.whole:
            return connection.execute(whole, values).all()
        return connection.execute(some[self._dialect], {**values, "lanes": list(self._tenure.lanes)}).all()


def _fitting(rows: Sequence[Row[Any]], most: int) -> Sequence[Row[Any]]:
    """The first rows, as many as have `most` bytes together; the first in any case."""
    total = 0
    for index, row in enumerate(rows):
        total += row.size
        if total > most and index:
            return rows[:index]
    return rows


def _dues(connection: Connection, rows: Sequence[Row[Any]]) -> Sequence[Due]:
    large = [row.seq for row in rows if row.body is None]
    bodies = {row.seq: row.body for row in connection.execute(_BODIES, {"seqs": large})} if large else {}
    return [_due(row, bodies) for row in rows]


def _due(row: Row[Any], bodies: Mapping[int, bytes]) -> Due:
    message = message_of(row)
    if row.body is None:
        message = replace(message, body=bodies[row.seq])
    return Due(seq=row.seq, message=message, place=(row.queue, row.ordering_key), attempts=row.attempts)
