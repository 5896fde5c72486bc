"""Parked rows: jobs that the broker refused for good. They wait for a person, who looks, then replays or discards them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import BigInteger, Integer, String, Text, bindparam, func, or_, select, update

from postroom.adapters.errors import ConfigurationError
from postroom.adapters.sql.engine import reading
from postroom.adapters.sql.transaction import transact
from postroom.adapters.sql.types import constant, now
from postroom.adapters.text import bounded

from .holdups import Holdup, let_go
from .rows import MESSAGE, message_of, stamp_of, wake
from .tables import outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Connection, Engine, Row, Select, Update

    from postroom.adapters.seam import Message

__all__ = ["Dropped", "Parked", "ParkedRow"]

_PARKED = outbox.c.status == constant("parked")
_QUEUE = bindparam("queue", type_=String)
_TYPE = bindparam("type", type_=String)

_COLUMNS = (outbox.c.seq, outbox.c.type, outbox.c.key, outbox.c.attempts, outbox.c.last_error, outbox.c.available_at, *MESSAGE)
_PAGE = (
    select(*_COLUMNS)
    .where(_PARKED, outbox.c.seq > bindparam("after", type_=BigInteger))
    .where(or_(_QUEUE.is_(None), outbox.c.queue == _QUEUE), or_(_TYPE.is_(None), outbox.c.type == _TYPE))
    .order_by(outbox.c.seq)
    .limit(bindparam("limit", type_=Integer))
)
_COUNTS = select(outbox.c.queue, func.count().label("number")).where(_PARKED).group_by(outbox.c.queue).order_by(outbox.c.queue)
_NAMED = (_PARKED, outbox.c.seq.in_(bindparam("seqs", expanding=True)))
_OF_EACH = (outbox.c.seq, outbox.c.queue, outbox.c.ordering_key, outbox.c.id, outbox.c.headers, outbox.c.last_error)
_LOCK: Select[Any] = select(*_OF_EACH).where(*_NAMED).order_by(outbox.c.seq).with_for_update()
_REPLAY = update(outbox).where(*_NAMED).values(status="pending", attempts=0, retry_at=None, holds=None)
_REASON = bindparam("reason", type_=Text) + func.coalesce(constant("; it was: ").concat(outbox.c.last_error), constant(""))
_DISCARD = update(outbox).where(*_NAMED).values(status="dropped", sent_at=now(), retry_at=None, holds=None, last_error=_REASON)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedRow:
    """One parked row. `seq` names it. `attempts` counts the publishes; `reason` is what the broker answered to the last one.

    `available_at` is its place in the line, in seconds by the database's clock; `message` is what would be published.
    """

    seq: int
    type: str
    key: str
    attempts: int
    reason: str
    available_at: float
    message: Message


class Dropped(NamedTuple):
    """The message of a row that was discarded: that of `job` to `queue`, with the number of its replay and copy. `error`: why it was parked."""

    job: str
    queue: str
    stamp: tuple[int, int]
    error: str


class Parked:
    """The parked rows of one outbox. For any thread; each call is a transaction of its own, safe to repeat; all raise Unavailable or SchemaDrift."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def list(self, *, queue: str | None = None, type: str | None = None, limit: int = 100, after: int = 0) -> Sequence[ParkedRow]:  # noqa: A002
        """Return up to `limit` rows in the order of their `seq`, behind `after`: the last `seq` of one page is the `after` of the next."""
        values = {"queue": queue, "type": type, "limit": limit, "after": after}
        return transact(reading(self._engine), lambda connection: [_parked(row) for row in connection.execute(_PAGE, values)])

    def counts(self) -> Mapping[str, int]:
        """Return how many rows are parked, for each queue that has any."""
        return transact(reading(self._engine), lambda connection: {row.queue: row.number for row in connection.execute(_COUNTS)})

    def replay(self, seqs: Sequence[int]) -> Sequence[int]:
        """Let relays publish these rows again, at their old place in the line and with a clean count; return those that were parked.

        A second call finds none of them parked any more and changes nothing.
        """
        return self._change(_REPLAY, seqs, {})

    def discard(self, seqs: Sequence[int], reason: str, *, also: Callable[[Connection, Dropped], object] | None = None) -> Sequence[int]:
        """Give these jobs up: they are never published, and keep `reason` in their rows until a purge; return those that were parked.

        `also` is done with each of them, in the same transaction. Where workers have a ledger, `DeadLetterOffice.discard` ends the job there, too.
        """
        if not reason.strip():
            raise ConfigurationError("reason: say why the jobs are given up; who asks for them later will read it")

        def end(connection: Connection, rows: Sequence[Row[Any]]) -> None:
            let_go(connection, [Holdup(row.queue, row.ordering_key, row.id) for row in rows])
            if also:
                for row in rows:
                    also(connection, Dropped(row.id, row.queue, stamp_of(row.headers), row.last_error or ""))

        return self._change(_DISCARD, seqs, {"reason": bounded(f"discarded: {reason}")}, end)

    def _change(
        self, statement: Update, seqs: Sequence[int], values: Mapping[str, Any], then: Callable[[Connection, Sequence[Row[Any]]], None] | None = None
    ) -> Sequence[int]:
        def work(connection: Connection) -> Sequence[int]:
            rows = connection.execute(_LOCK, {"seqs": list(seqs)}).all()
            found = [row.seq for row in rows]
            if found:
                connection.execute(statement, {"seqs": found, **values})
                if then:
                    then(connection, rows)
                wake(connection)
            return found

        return transact(self._engine, work) if seqs else ()


def _parked(row: Any) -> ParkedRow:  # noqa: ANN401 - a Row of _COLUMNS
    return ParkedRow(
        seq=row.seq,
        type=row.type,
        key=row.key,
        attempts=row.attempts,
        reason=row.last_error or "",
        available_at=row.available_at,
        message=message_of(row),
    )
