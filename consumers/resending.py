"""Jobs that the broker has lost, sent again: after a queue or topic was deleted, its retention has passed, or its disk is gone.

The outbox still has them, for its retention time: rows that are marked sent. Which of them are lost only the broker could tell, and it does not;
so it is asked how many messages it holds. If those are as many as are outstanding, all seem to wait, and nothing is done. If they are fewer, some are
lost, and all that are overdue are sent again, under their old ids: of what comes twice the ledger lets one run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from sqlalchemy import select

from postroom.adapters.errors import ConfigurationError
from postroom.adapters.numbers import flaw, flaws
from postroom.adapters.sql.engine import reading
from postroom.adapters.sql.transaction import transact
from postroom.adapters.sql.types import now
from postroom.outbox.again import Again, send_again
from postroom.outbox.holdups import Holdup
from postroom.outbox.rows import restamped

from .outstanding import Search, Span, groups_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from sqlalchemy import Engine

    from postroom.adapters.seam import Adapter

    from .jobs import Jobs
    from .outstanding import Outstanding

__all__ = ["Overdue", "Resent", "resend"]

RETENTION = 7 * 86400.0
BATCH = 500

_NOW = select(now())


@dataclass(frozen=True, slots=True, kw_only=True)
class Resent:
    """What was found, and done, in one queue (carrier).

    `outstanding`: messages that were sent and of which the ledger knows no outcome, `overdue`: those of them that were sent long enough ago,
    `on_broker`: messages that the broker holds, `resent`: those that go out again. `waits`: the broker holds enough for all of them to wait there.
    """

    queue: str
    outstanding: int
    overdue: int
    on_broker: int
    resent: int = 0

    @property
    def waits(self) -> bool:
        """Whether all seem to wait on the broker for a worker: then nothing is sent again unless it is forced."""
        return self.on_broker >= self.outstanding


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    """Which jobs are meant: those sent more than `older_than` seconds ago, of these `queues` and `types` (all where none are named).

    At most `limit` of them, oldest first; in an ordered queue all that is outstanding behind one of them goes with it. `retention` (seconds) is for
    how long the workers' ledger remembers what is done: what was sent before then may be done, and is left alone.
    """

    older_than: float = 3600.0
    queues: Collection[str] = ()
    types: Collection[str] = ()
    limit: int | None = None
    retention: float = RETENTION

    def __post_init__(self) -> None:
        """Raise ConfigurationError for bounds between which nothing can be."""
        given = [flaw("older_than", self.older_than, least=0, unit="seconds"), flaw("retention", self.retention, above=0, unit="seconds")]
        if wrong := flaws(*given, None if self.limit is None else flaw("limit", self.limit, whole=True, least=1)):
            raise ConfigurationError(wrong)
        if self.older_than >= self.retention:
            raise ConfigurationError(
                f"older_than ({self.older_than:g} s) leaves nothing to send: the ledger remembers for {self.retention:g} s what is done"
            )

    def span(self, clock: float) -> Span:
        """What that is at this time."""
        return Span(first=clock - self.retention, quiet=clock - self.older_than, last=clock)

    def has_queue(self, row: Outstanding) -> bool:
        """Whether it is in one of the queues: named as it was declared, or as the broker has its parts."""
        named = {row.queue, *row.carriers}
        return not self.queues or any(name == queue or name.startswith(f"{queue}.") for name in named for queue in self.queues)

    def has_type(self, row: Outstanding) -> bool:
        """Whether it is of one of the types."""
        return not self.types or row.type in self.types


def resend(
    engine: Engine,
    adapter: Adapter,
    overdue: Overdue,
    *,
    force: bool = False,
    dry_run: bool = False,
    jobs: Jobs | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Sequence[Resent]:
    """Send those jobs again that are overdue and that no worker has begun, in queues where the broker has lost some.

    With `force` also where all seem to wait on the broker; with `dry_run` nothing is changed, and `resent` is how many would be. `jobs` names all
    groups of topics; without them those count in which the ledger knows any job. A relay must run to publish what is sent again.

    Returns one answer for each queue with something outstanding. Reads the sent rows twice, in pages, and the dead letters of these queues; writes in
    small transactions, and may be stopped anywhere and called again. Raises Unavailable when database or broker can't be reached.
    """
    clock: float = transact(reading(engine), lambda connection: connection.execute(_NOW).scalar_one())
    search = Search(engine, adapter, groups_of(engine, jobs), overdue.span(clock))
    found = _count(search, adapter, overdue)
    meant = _meant(search.rows(), overdue, {each.queue for each in found if force or not each.waits})
    sent: Counter[str] = Counter()
    while batch := list(islice(meant, BATCH)):
        gone = batch if dry_run else _send(engine, adapter, batch, clock)
        sent.update(carrier for row in gone for carrier in row.carriers)
        progress(len(gone))
    return [replace(each, resent=sent[each.queue]) for each in found]


def _count(search: Search, adapter: Adapter, overdue: Overdue) -> Sequence[Resent]:
    outstanding: Counter[str] = Counter()
    late: Counter[str] = Counter()
    for row in filter(overdue.has_queue, search.rows()):
        outstanding.update(row.carriers)
        late.update(row.carriers if row.is_overdue and overdue.has_type(row) else ())
    return [
        Resent(queue=queue, outstanding=number, overdue=late[queue], on_broker=_held(adapter, queue)) for queue, number in sorted(outstanding.items())
    ]


def _held(adapter: Adapter, queue: str) -> int:
    depth = adapter.depth(queue)
    return depth.get("pending", 0) + depth.get("running", 0)


def _meant(rows: Iterable[Outstanding], overdue: Overdue, queues: AbstractSet[str]) -> Iterator[Outstanding]:
    """Those to send again, oldest first; in an ordered queue with all that is behind them."""
    begun: set[tuple[str, str]] = set()
    left = overdue.limit
    for row in rows:
        if not overdue.has_queue(row) or queues.isdisjoint(row.carriers):
            continue
        if (row.queue, row.ordering_key) in begun:
            yield row
        elif row.is_overdue and overdue.has_type(row) and left != 0:
            left = None if left is None else left - 1
            begun.update([(row.queue, row.ordering_key)] if row.ordered else [])
            yield row


def _send(engine: Engine, adapter: Adapter, batch: Sequence[Outstanding], clock: float) -> Sequence[Outstanding]:
    rows = [_again(row, native_delay=adapter.capabilities.native_delay) for row in batch]
    done = set(transact(engine, lambda connection: send_again(connection, rows, before=clock)))
    return [row for row in batch if row.seq in done]


def _again(row: Outstanding, *, native_delay: bool) -> Again:
    """Where the broker can't keep a message in its old place, it holds up those of its key that are on the broker already."""
    holdups = [Holdup(carrier, row.ordering_key, row.id) for carrier in row.carriers] if row.ordered and not native_delay else []
    stamped = restamped(row.packed, replays=row.alive[0], copy=row.alive[1]) if row.alive else None
    return Again(seq=row.seq, headers=stamped, holdups=holdups)
