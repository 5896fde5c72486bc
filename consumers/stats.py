"""How many jobs are where, told from the outbox, the broker and the ledger."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, func, select

from postroom.adapters.sql.engine import reading
from postroom.adapters.sql.transaction import transact
from postroom.adapters.sql.types import constant, now
from postroom.outbox.parked import Parked
from postroom.outbox.tables import outbox

from .ledger.tables import ledger

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Connection, Engine

    from postroom.adapters.seam import Adapter

__all__ = ["QueueStats", "Stats", "stats_of"]

_PENDING = outbox.c.status == constant("pending")
_WAITING = select(outbox.c.queue, func.count()).where(_PENDING).group_by(outbox.c.queue)
_OLDEST = select(func.min(outbox.c.available_at), now()).where(and_(_PENDING, outbox.c.available_at <= now()))
_LEDGER = select(ledger.c.queue, ledger.c.status, func.count()).group_by(ledger.c.queue, ledger.c.status)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """One queue. `outbox` counts rows by status (pending, parked), `broker` messages (pending, running, failed: the dead letters), `ledger` keys.

    `broker` is empty for a topic, and where the broker does not know the queue.
    """

    queue: str
    outbox: Mapping[str, int]
    broker: Mapping[str, int]
    ledger: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """All queues, and since when (seconds since the epoch, the database's clock) the oldest due row waits in the outbox; `lag` is for how long."""

    queues: Sequence[QueueStats]
    oldest_due: float | None
    lag: float


def stats_of(engine: Engine, adapter: Adapter, *, carriers: Iterable[str] = ()) -> Stats:
    """Count. `carriers` are queues to ask the broker about besides those that it can list. Reads the whole ledger once: some seconds for millions.

    Raises Unavailable when database or broker can't be reached.
    """
    waiting, (oldest, clock), known = transact(reading(engine), _read)
    counts: defaultdict[str, dict[str, dict[str, int]]] = defaultdict(lambda: {"outbox": {}, "broker": {}, "ledger": {}})
    for queue, count in waiting:
        counts[queue]["outbox"]["pending"] = count
    for queue, count in Parked(engine).counts().items():
        counts[queue]["outbox"]["parked"] = count
    for queue, status, count in known:
        counts[queue]["ledger"][status] = count
    for carrier in {*carriers, *adapter.carriers()}:
        counts[carrier]["broker"].update(adapter.depth(carrier))
    queues = [QueueStats(queue=queue, **parts) for queue, parts in sorted(counts.items())]
    return Stats(queues=queues, oldest_due=oldest, lag=max(0.0, clock - oldest) if oldest is not None else 0.0)


def _read(connection: Connection) -> tuple[Sequence[Any], Any, Sequence[Any]]:
    return connection.execute(_WAITING).all(), connection.execute(_OLDEST).one(), connection.execute(_LEDGER).all()
