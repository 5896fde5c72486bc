"""A subscription to carriers, whichever kind of group feeds it."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from postroom.adapters.consuming import require_held, require_usable
from postroom.adapters.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from postroom.adapters.seam import Delivery

    from .desk import Desk
    from .entry import Entry
    from .keeper import Keeper

__all__ = ["KafkaConsumer"]

FAREWELL = 15.0
"""How long (seconds) close() waits at most for the clients to leave their groups."""


class KafkaConsumer:
    """See `postroom.adapters.seam.Consumer`.

    An ack is noted at once, and told to the broker a moment later, in ranges: after a crash between it is delivered again.
    A released delivery comes again to this consumer; others get it when this one closes. `bury` has a dead letter confirmed, or raises. While some
    of the `topics` can be read, `receive` does not raise for the others.
    """

    def __init__(self, desk: Desk, keepers: Sequence[Keeper], bury: Callable[[Entry, str], None], *, topics: Collection[str] = ()) -> None:
        self._desk = desk
        self._keepers = keepers
        self.groups = frozenset(keeper.group for keeper in keepers)
        self._bury = bury
        self._topics = frozenset(topics)
        self._pid = os.getpid()
        self.closed = False

    def receive(self, limit: int, timeout: float) -> Sequence[Delivery]:
        """Return what was read, or wait up to `timeout` seconds for it; see `Consumer.receive`. Raises what keeps all jobs from coming."""
        late = time.monotonic() + timeout
        with self._desk.changed:
            while True:
                self._require_open()
                taken = self._desk.take(limit)
                if not taken:
                    self._raise_trouble()
                left = late - time.monotonic()
                if taken or left <= 0:
                    return taken
                self._desk.changed.wait(left)

    @property
    def troubles(self) -> Sequence[str]:
        """See `Consumer.troubles`: of the servers, of a group, of topics and partitions."""
        with self._desk.changed:
            return [str(trouble) for trouble in self._desk.troubles.values()]

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """running -> done."""
        self._settle(deliveries, self._desk.end)

    def fail(self, delivery: Delivery, error: str, delay: float = 0.0) -> None:  # noqa: ARG002 - the seam's
        """Not here."""
        raise ConfigurationError("this backend can't hold a job back (no native_delay): publish the retry when it is due, and ack this delivery")

    def release(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> None:
        """running -> pending, uncharged."""
        if delay:
            raise ConfigurationError("this backend can't hold a job back (no native_delay): release it without a delay")
        self._settle(deliveries, self._desk.put_back)

    def dead_letter(self, delivery: Delivery, reason: str) -> None:
        """running -> failed: the letter is confirmed first. Blocks as long as publish(); raises Unavailable, and it is held as before."""
        with self._desk.changed:
            self._require_open()
            entry = self._desk.pick_up(delivery)
        if entry is None:
            require_held([delivery])
            return
        try:
            self._bury(replace(entry, attempts=delivery.attempts + 1), reason)
        except BaseException:
            with self._desk.changed:
                self._desk.hold_again(delivery, entry)
            raise
        with self._desk.changed:
            lost = entry.place.over
            self._desk.end(entry, buried=True)
        require_held([delivery] if lost else [])

    def extend(self, deliveries: Sequence[Delivery], lease: float) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Leave the groups; what is not settled goes to others. A `receive` that waits in another thread raises Closed."""
        if self.closed or self._pid != os.getpid():
            return
        with self._desk.changed:
            self.closed = True
            self._desk.changed.notify_all()
        for keeper in self._keepers:
            keeper.stop()
        for keeper in self._keepers:
            keeper.wait(FAREWELL)

    def running(self, carrier: str) -> int:
        """How many deliveries of a carrier are out."""
        with self._desk.changed:
            return 0 if self.closed else self._desk.running[carrier]

    @property
    def tombstones(self) -> int:
        """How many records without a value were passed over."""
        return self._desk.tombstones

    def _settle(self, deliveries: Sequence[Delivery], step: Callable[[Entry], None]) -> None:
        lost = []
        with self._desk.changed:
            self._require_open()
            for delivery in deliveries:
                entry = self._desk.pick_up(delivery)
                if entry is None:
                    lost.append(delivery)
                else:
                    step(entry)
        require_held(lost)

    def _raise_trouble(self) -> None:
        troubles = self._desk.troubles
        unread = {place.partition("[")[0] for place in troubles}
        if troubles and not unread < self._topics:
            newest = [*troubles.values()][-1]  # it says most
            raise type(newest)(str(newest))

    def _require_open(self) -> None:
        require_usable(closed=self.closed, pid=self._pid)
