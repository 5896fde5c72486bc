"""The books of a Memory: which job stands where. The rules are `postroom.adapters.machine`'s; nothing here decides.

Every method is called with the lock `changed` held.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
from threading import Condition
from typing import TYPE_CHECKING

from postroom.adapters import machine
from postroom.adapters.errors import Closed, ConfigurationError
from postroom.adapters.machine import Job, Lease, Status
from postroom.adapters.seam import Delivery, Message, Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .lines import Line

__all__ = ["Carrier", "Entry", "Holder", "Store", "steady_clock"]


def steady_clock() -> Callable[[], float]:
    """A clock of seconds since the epoch that never goes back when the host's is set."""
    start = time.time() - time.monotonic()
    return lambda: start + time.monotonic()


@dataclass(slots=True, eq=False)
class Holder:
    """Who holds running jobs, and how many."""

    name: str
    unsettled: int = 0


@dataclass(slots=True, eq=False)
class Entry:
    """One job with its message and its place. Only `Store.move` gives it another state."""

    number: int
    carrier: Carrier
    message: Message
    job: Job
    holder: Holder | None = None

    @property
    def rank(self) -> tuple[float, int]:
        """Its place in the line."""
        return self.job.available_at, self.number

    @property
    def ordering_key(self) -> str | None:
        """Whom it must not overtake."""
        return self.message.ordering_key

    @property
    def token(self) -> str:
        """The receipt of the one who holds it; empty when nobody does."""
        return self.job.lease.token if self.job.lease else ""


@dataclass(slots=True, eq=False)
class Carrier:
    """One queue that really holds jobs: its line, the leases by the time they run out, its dead letters by the order of their death."""

    name: str
    queue: Queue
    line: Line[Entry]
    leases: list[tuple[float, str]] = field(default_factory=list)
    dead: dict[str, Entry] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    counts: Counter[Status] = field(default_factory=Counter)


class Store:
    """All carriers, all running jobs by their token, one lock."""

    def __init__(self, clock: Callable[[], float], *, keeps_copies: bool) -> None:
        self.now = clock
        self.changed = Condition()
        self.carriers: dict[str, Carrier] = {}
        self.running: dict[str, Entry] = {}
        self.closed = False
        self._keeps_copies = keeps_copies
        self._numbers = itertools.count(1)

    def require_open(self) -> None:
        """Raise Closed after close()."""
        if self.closed:
            raise Closed("this memory adapter is closed")

    def carrier(self, name: str) -> Carrier:
        """Return a declared carrier; raise ConfigurationError for any other."""
        if name not in self.carriers:
            raise ConfigurationError(f"queue {name!r} is not declared: declare it with ensure() first")
        return self.carriers[name]

    def enter(self, carrier: Carrier, message: Message) -> None:
        """none -> pending; a message that the carrier holds already is not kept twice, unless copies are."""
        if message.id in carrier.known:
            return
        if not self._keeps_copies:
            carrier.known.add(message.id)
        now = self.now()
        job = machine.enqueue(message.id, now=now, max_attempts=message.max_attempts or machine.UNLIMITED, delay=message.delay)
        carrier.counts[job.status] += 1
        carrier.line.enter(Entry(next(self._numbers), carrier, message, job), now)

    def take(self, carrier: Carrier, holder: Holder, now: float) -> Delivery:
        """pending -> running for the head of the line, which is due."""
        entry = carrier.line.take()
        lease = Lease(token=self._ticket(), until=now + carrier.queue.lease, worker=holder.name)
        self._record(entry, machine.take(entry.job, lease, now))
        entry.holder = holder
        holder.unsettled += 1
        self.running[lease.token] = entry
        self._watch(carrier, lease)
        return Delivery(message=entry.message, queue=carrier.name, token=lease.token, attempts=entry.job.attempts)

    def extend(self, entry: Entry, until: float) -> None:
        """running -> running."""
        entry.job = machine.renew(entry.job, entry.token, until)
        if entry.job.lease:
            self._watch(entry.carrier, entry.job.lease)

    def move(self, entry: Entry, job: Job) -> None:
        """The one way out of running: to its old place, to the dead letters, or out of the books."""
        self._unhold(entry)
        self._record(entry, job)
        if job.status is Status.PENDING:
            entry.carrier.line.come_back(entry)
        elif job.status is Status.FAILED:
            entry.carrier.dead[self._ticket()] = entry
        else:
            self.forget(entry)

    def revive(self, entry: Entry, message: Message) -> None:
        """failed -> pending, with the message as an operator mended it."""
        entry.message = message
        self._record(entry, machine.retry(entry.job, self.now()))
        entry.carrier.line.come_back(entry)

    def forget(self, entry: Entry) -> None:
        """Strike a job that has ended from the books."""
        entry.carrier.counts[entry.job.status] -= 1
        entry.carrier.known.discard(entry.message.id)
        entry.carrier.line.leave(entry)

    def hand_back(self, entries: Iterable[Entry]) -> int:
        """running -> pending, uncharged; return how many."""
        held = list(entries)
        for entry in held:
            self.move(entry, machine.release(entry.job, entry.token, self.now()))
        self.changed.notify_all()
        return len(held)

    def reclaim(self, carrier: Carrier, now: float) -> None:
        """running -> pending or failed for every lease that has run out."""
        while carrier.leases and carrier.leases[0][0] < now:
            entry = self.running.get(heappop(carrier.leases)[1])
            if entry is not None and machine.is_abandoned(entry.job, now):
                self.move(entry, machine.reclaim(entry.job, now))

    def _ticket(self) -> str:
        """A name that nothing else has; names sort as they were given."""
        return f"{next(self._numbers):015}"

    def _record(self, entry: Entry, job: Job) -> None:
        entry.carrier.counts[entry.job.status] -= 1
        entry.carrier.counts[job.status] += 1
        entry.job = job

    def _watch(self, carrier: Carrier, lease: Lease) -> None:
        heappush(carrier.leases, (lease.until, lease.token))

    def _unhold(self, entry: Entry) -> None:
        del self.running[entry.token]
        if entry.holder is not None:
            entry.holder.unsettled -= 1
            entry.holder = None
