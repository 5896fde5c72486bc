"""The next rows to send: plain reads, for the lanes already say who may send them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from postroom.adapters.seam import Message, Outcome, Verdict
from postroom.adapters.sql.engine import reading
from postroom.adapters.sql.transaction import transact

from .due import AGAIN, BODIES, FRESH, WHOLE
from .lanes import Tenure
from .rows import to_message

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Connection, Engine, Row, Select

    from .options import RelayOptions

__all__ = ["Answer", "Batch", "Due", "Line", "Place"]

RESCAN = 1.0
"""While there is a backlog, the line is read from its very beginning at least this often (seconds)."""

_UNREADABLE = (msgspec.MsgspecError, TypeError, ValueError)

Place: TypeAlias = tuple[str, str]
"""Whom a row may hold back: the rows of its queue with its ordering key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A row that may be sent now, with its message. `attempts` counts the broker's earlier answers of "not now"; `ordered` is its queue's."""

    seq: int
    message: Message
    place: Place
    attempts: int
    ordered: bool = False


Answer: TypeAlias = tuple[Due, Outcome]
"""What became of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The rows of one round in the order in which they leave, and whether there may be more behind them.

    `refused` are rows that are no messages: something else than Postroom, or one much newer, wrote them.
    """

    rows: Sequence[Due] = ()
    refused: Sequence[Answer] = ()
    more: bool = False


class Line:
    """The line of due rows as one relay walks along it, batch by batch.

    What was sent leaves dead index entries behind until the database cleans up, and with them the beginning of a long line gets slow to read. So
    after a full batch the next one is read from where that one ended, and the whole line again once in a while: a row that was committed
    late, or that is held no more, waits that long at most. A batch that is not full always comes from the whole line.
    """

    def __init__(self, engine: Engine, options: RelayOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = reading(engine)
        self._some = engine.dialect.name if engine.dialect.name in FRESH else "other"
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
        return transact(self._engine, lambda connection: any(connection.execute(query[WHOLE], values).first() for query in (FRESH, AGAIN)))

    def _read(self, connection: Connection) -> Batch:
        again = self._select(connection, AGAIN, -(-self._options.batch // 2))  # never more than half, so that it starves nobody
        fresh = self._fresh(connection)
        rows = sorted((*again, *fresh), key=attrgetter("available_at", "seq")) if again else fresh
        chosen = _fitting(rows[: self._options.batch], self._options.batch_bytes)
        more = len(fresh) == self._options.batch or len(chosen) < len(rows)
        self._start = chosen[-1].available_at if more else 0.0
        return _batch(connection, chosen, more=more)

    def _fresh(self, connection: Connection) -> Sequence[Row[Any]]:
        rows = self._select(connection, FRESH, self._options.batch) if self._start else ()
        return rows if len(rows) == self._options.batch else self._from_the_beginning(connection)

    def _from_the_beginning(self, connection: Connection) -> Sequence[Row[Any]]:
        self.restart()
        began = self._clock()
        rows = self._select(connection, FRESH, self._options.batch)
        ended = self._clock()
        self._rescan_at = ended + max(RESCAN, 10 * (ended - began))
        return rows

    def _select(self, connection: Connection, queries: Mapping[str, Select[Any]], limit: int) -> Sequence[Row[Any]]:
        query = queries[WHOLE if self._tenure.whole else self._some]
        return connection.execute(query, {"start": self._start, "limit": limit, "lanes": list(self._tenure.lanes)}).all()


def _fitting(rows: Sequence[Row[Any]], most: int) -> Sequence[Row[Any]]:
    """The first rows, as many as have `most` bytes together; the first in any case."""
    total = 0
    for index, row in enumerate(rows):
        total += row.size
        if total > most and index:
            return rows[:index]
    return rows


def _batch(connection: Connection, rows: Sequence[Row[Any]], *, more: bool) -> Batch:
    large = [row.seq for row in rows if row.body is None]
    bodies = {row.seq: row.body for row in connection.execute(BODIES, {"seqs": large})} if large else {}
    try:
        return Batch(rows=[_due(row, bodies) for row in rows], more=more)
    except _UNREADABLE:  # one of them, which is found only now: it never is
        return _sorted_out(rows, bodies, more=more)


def _sorted_out(rows: Sequence[Row[Any]], bodies: Mapping[int, bytes], *, more: bool) -> Batch:
    good: list[Due] = []
    refused: list[Answer] = []
    for row in rows:
        try:
            good.append(_due(row, bodies))
        except _UNREADABLE as error:
            refused.append((_unreadable(row), Outcome(Verdict.REFUSED, f"the row is no message of Postroom's: {error}")))
    stuck = {row.place for row, _ in refused}
    return Batch(rows=[row for row in good if row.place not in stuck], refused=refused, more=more)


def _due(row: Sequence[Any], bodies: Mapping[int, bytes]) -> Due:
    seq, attempts, ordered, _, _, job_id, queue, body, headers, ordering_key, enqueued_at = row  # by position: three times as quick as by name
    message = to_message(job_id, queue, bodies[seq] if body is None else body, headers, ordering_key, enqueued_at)
    return Due(seq=seq, message=message, place=(queue, ordering_key), attempts=attempts, ordered=ordered)


def _unreadable(row: Row[Any]) -> Due:
    message = Message(id=row.id, queue=row.queue, body=b"")
    return Due(seq=row.seq, message=message, place=(row.queue, row.ordering_key), attempts=row.attempts)
