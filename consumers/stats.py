"""How many jobs are where, told from the outbox, the broker and the ledger."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import func, select

from postroom.adapters.sql.engine import reading
from postroom.adapters.sql.transaction import transact
from postroom.adapters.sql.types import now
from postroom.outbox.stats import Backlog, stats

from .known import carriers_known, sent_and_gone
from .ledger.tables import ledger

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Connection, Engine

    from postroom.adapters.seam import Adapter

__all__ = ["QueueStats", "Stats", "stats_of"]

_LEDGER = select(ledger.c.queue, ledger.c.status, func.count()).group_by(ledger.c.queue, ledger.c.status)
_NOW = select(now())


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """One queue. `broker` counts messages by status (pending, running, failed: the dead letters), `ledger` counts keys.

    `broker` is empty for a topic, and where the broker does not know the queue.
    """

    queue: str
    outbox: Backlog
    broker: Mapping[str, int]
    ledger: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """All queues. `lag` is for how long (seconds) the oldest row that is due has waited in the outbox, `now` the time by the database's clock.

    `gone` are queues that the broker does not have, deleted ones perhaps, each with how many jobs were sent there and have not ended.
    """

    queues: Sequence[QueueStats]
    lag: float
    now: float
    gone: Mapping[str, int]


def stats_of(engine: Engine, adapter: Adapter, *, carriers: Iterable[str] = ()) -> Stats:
    """Count. `carriers` are queues to ask the broker about besides those that are known of it: see `carriers_known`.

    Reads the whole ledger once: some seconds for millions.
    Raises Unavailable when database or broker can't be reached.
    """
    backlogs, keys, clock = transact(reading(engine), _read)
    depths = {carrier: adapter.depth(carrier) for carrier in {*carriers, *carriers_known(engine, adapter)}}
    gone = sent_and_gone(engine, adapter.carriers())
    queues = [
        QueueStats(queue=queue, outbox=backlogs.get(queue, Backlog()), broker=depths.get(queue, {}), ledger=keys.get(queue, {}))
        for queue in sorted({*backlogs, *keys, *depths, *gone})
    ]
    return Stats(queues=queues, lag=max((backlog.lag for backlog in backlogs.values()), default=0.0), now=clock, gone=gone)


def _read(connection: Connection) -> tuple[Mapping[str, Backlog], Mapping[str, Mapping[str, int]], float]:
    keys: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for queue, status, count in connection.execute(_LEDGER):
        keys[queue][status] = count
    return stats(connection), keys, connection.execute(_NOW).scalar_one()
