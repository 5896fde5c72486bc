"""A subscription to carriers of a Memory."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from postroom.adapters import machine
from postroom.adapters.consuming import require_held
from postroom.adapters.errors import Closed, ConfigurationError

from .store import Holder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from postroom.adapters.seam import Delivery
    from postroom.adapters.weights import Turns

    from .store import Carrier, Entry, Store

__all__ = ["MemoryConsumer"]

_GRAIN = 0.001  # a lease that runs out now has run out a moment later


class MemoryConsumer:
    """See `postroom.adapters.seam.Consumer`. A publish or a settle by anyone wakes `receive` at once."""

    def __init__(self, store: Store, carriers: Mapping[str, Carrier], turns: Turns, prefetch: int, name: str, *, native_delay: bool) -> None:
        self._store = store
        self._carriers = carriers
        self._turns = turns
        self._prefetch = prefetch
        self._holder = Holder(name)
        self._native_delay = native_delay
        self._closed = False

    def receive(self, limit: int, timeout: float) -> Sequence[Delivery]:
        """Return what is due, or wait up to `timeout` seconds for it; see `Consumer.receive`."""
        late = time.monotonic() + timeout
        with self._store.changed:
            while not (taken := self._take(limit)) and (left := late - time.monotonic()) > 0:
                self._store.changed.wait(min(left, self._until_something_is_due()))
            return taken

    @property
    def troubles(self) -> Sequence[str]:
        """None, ever."""
        return ()

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """running -> done."""
        self._settle(deliveries, lambda entry, now: self._store.move(entry, machine.ack(entry.job, entry.token, now)))

    def fail(self, delivery: Delivery, error: str, delay: float = 0.0) -> None:
        """running -> pending, or failed on the last attempt."""
        self._require_native_delay()
        self._settle([delivery], lambda entry, now: self._store.move(entry, machine.fail(entry.job, entry.token, error, now, delay)))

    def release(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> None:
        """running -> pending, uncharged."""
        if delay:
            self._require_native_delay()
        self._settle(deliveries, lambda entry, now: self._store.move(entry, machine.release(entry.job, entry.token, now, delay)))

    def dead_letter(self, delivery: Delivery, reason: str) -> None:
        """running -> failed."""

        def give_up(entry: Entry, now: float) -> None:
            job = replace(entry.job, attempts=delivery.attempts)
            self._store.move(entry, machine.dead_letter(job, entry.token, reason, now))

        self._settle([delivery], give_up)

    def extend(self, deliveries: Sequence[Delivery], lease: float) -> None:
        """running -> running."""
        self._settle(deliveries, lambda entry, now: self._store.extend(entry, now + lease))

    def close(self) -> None:
        """Hand back what is not settled."""
        with self._store.changed:
            self._closed = True
            self._store.hand_back([entry for entry in self._store.running.values() if entry.holder is self._holder])

    def _take(self, limit: int) -> list[Delivery]:
        self._require_open()
        now = self._store.now()
        for carrier in self._carriers.values():
            self._store.reclaim(carrier, now)
        taken: list[Delivery] = []
        room = min(limit, self._prefetch - self._holder.unsettled)
        while len(taken) < room and (ready := [name for name, carrier in self._carriers.items() if carrier.line.is_ready(now)]):
            taken.append(self._store.take(self._carriers[self._turns.pick(ready)], self._holder, now))
        return taken

    def _until_something_is_due(self) -> float:
        """Seconds until a delayed job is due or a lease runs out. A full consumer waits for room only."""
        full = self._holder.unsettled >= self._prefetch
        times = [carrier.leases[0][0] for carrier in self._carriers.values() if carrier.leases]
        times += [] if full else [carrier.line.due() for carrier in self._carriers.values()]
        return max(min(times, default=float("inf")) - self._store.now(), 0.0) + _GRAIN

    def _settle(self, deliveries: Sequence[Delivery], step: Callable[[Entry, float], None]) -> None:
        """Take the step for each delivery that is still held here; raise LeaseLost for the others."""
        with self._store.changed:
            self._require_open()
            now = self._store.now()
            lost = [delivery for delivery in deliveries if not self._step(delivery, step, now)]
            self._store.changed.notify_all()
        require_held(lost)

    def _step(self, delivery: Delivery, step: Callable[[Entry, float], None], now: float) -> bool:
        entry = self._store.running.get(str(delivery.token))
        if entry is None or entry.holder is not self._holder:
            return False
        step(entry, now)
        return True

    def _require_open(self) -> None:
        self._store.require_open()
        if self._closed:
            raise Closed("this consumer is closed")

    def _require_native_delay(self) -> None:
        if not self._native_delay:
            raise ConfigurationError("this backend can't hold a job back (no native_delay): publish the retry when it is due, and ack this delivery")
