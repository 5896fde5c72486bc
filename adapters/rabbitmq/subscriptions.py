"""The feeds of a consumer: opened, lost, opened again."""

from __future__ import annotations

import logging
import math
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from postroom.adapters.errors import PostroomError, Unavailable

from .feed import KEYED_CREDIT, Feed
from .refusals import Refusal, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from threading import Condition

    from .broker import Broker
    from .layout import Carrier
    from .shelves import Parcel

__all__ = ["Subscriptions"]

_log = logging.getLogger("postroom.rabbitmq")

FIRST_PAUSE, LAST_PAUSE = 0.5, 5.0
"""How long (seconds) to leave alone a queue that can't be subscribed to, while others are served: at first, and at most."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """A queue could not be subscribed to: when to try again, and after how many seconds that is."""

    why: str = ""
    retry_at: float = -math.inf
    pause: float = FIRST_PAUSE / 2

    def again(self, why: str, now: float) -> _Failure:
        """The next one."""
        pause = min(2 * self.pause, LAST_PAUSE)
        return _Failure(why, now + pause, pause)


class Subscriptions:
    """For each carrier a feed of each of its queues. `changed` is the consumer's lock, which it holds around all but `mend` and `close`."""

    def __init__(
        self,
        broker: Broker,
        carriers: Sequence[Carrier],
        changed: Condition,
        clock: Callable[[], float],
        *,
        weights: Mapping[str, int],
        name: str,
        prefetch: int,
    ) -> None:
        self._broker = broker
        self._carriers = {carrier.name: carrier for carrier in carriers}
        self._floors = {name: min(prefetch, math.ceil(weight / min(weights.values()))) for name, weight in weights.items()}
        self._feeds: dict[str, deque[Feed]] = {carrier.name: deque() for carrier in carriers}
        self._changed = changed
        self._clock = clock
        self._name = name
        self._prefetch = prefetch
        self._demand = 1
        self._doubtful: set[str] = set()
        self._failed: dict[str, _Failure] = {}

    def mend(self) -> Unavailable | None:
        """Open what is not open yet, and put new feeds in the place of those that are over; return what stands in the way of one.

        Blocks as `Channel` does; to connect, once for all of them.
        """
        for name in self._carriers:
            self._clear(name)
        missing = self._missing
        try:
            if missing:
                self._broker.control.get()
        except PostroomError as error:
            return Unavailable(str(error))
        troubles = [self._fill(name) for name in missing]
        return next((trouble for trouble in troubles if trouble), None)

    def close(self) -> None:
        """Hand back all that is not settled. Blocks for some seconds at most."""
        for feed in [feed for feeds in self._feeds.values() for feed in feeds]:
            feed.close()

    @property
    def is_alive(self) -> bool:
        """Whether there is any feed that is not over."""
        return any(self._alive())

    @property
    def troubles(self) -> list[str]:
        """Why a carrier is not subscribed to, all of it; for each that is not."""
        return [self._failed[name].why if name in self._failed else f"queue {name!r}: not subscribed" for name in self._missing]

    @property
    def lost(self) -> Unavailable | None:
        """Why a feed is over since the last `mend`."""
        over = next((feed for feeds in self._feeds.values() for feed in feeds if feed.over), None)
        return Unavailable(f"queue {over.queue!r}: {over.over}") if over else None

    def want(self, demand: int) -> None:
        """Have so many deliveries here at a time: of each queue as many, since others may be empty, and its turns of one round at least."""
        self._demand = min(demand, self._prefetch)
        with suppress(Unavailable):  # lost this moment
            for feed in self._alive():
                feed.grow(self._credit(feed.carrier))

    def ready(self) -> list[str]:
        """The carriers that have something to take."""
        return [name for name, feeds in self._feeds.items() if any(feed.is_ready for feed in feeds)]

    def take(self, carrier: str) -> Parcel:
        """One delivery of a carrier that is ready, of its queues in turn."""
        feeds = self._feeds[carrier]
        feed = next(feed for feed in feeds if feed.is_ready)
        feeds.remove(feed)
        feeds.append(feed)
        return feed.shelf.take()

    def hand_back(self, before: float) -> None:
        """Let others have what has been waiting here since before that time."""
        with suppress(Unavailable):  # lost this moment
            for feed in self._alive():
                feed.shrink(self._credit(feed.carrier), before)

    def outstanding(self, carrier: str) -> int:
        """How many deliveries of a carrier are not settled."""
        return sum(feed.outstanding for feed in self._feeds.get(carrier, ()) if not feed.over)

    def _alive(self) -> Iterator[Feed]:
        return (feed for feeds in self._feeds.values() for feed in feeds if not feed.over)

    @property
    def _missing(self) -> list[str]:
        """The carriers that have a queue without a feed."""
        return [name for name, carrier in self._carriers.items() if sum(not feed.over for feed in self._feeds[name]) < len(carrier.queues)]

    def _clear(self, name: str) -> None:
        feeds = self._feeds[name]
        for feed in [feed for feed in feeds if feed.over]:
            _log.warning("lost the subscription to %s: %s", feed.queue, feed.over)
            self._doubtful.add(name)
            feed.close()
            with self._changed:
                feeds.remove(feed)

    def _fill(self, name: str) -> Unavailable | None:
        """Where a feed was lost its queue may be gone, or another one: look first."""
        before = self._failed.get(name, _Failure())
        if self.is_alive and self._clock() < before.retry_at:
            return Unavailable(before.why)
        try:
            if name in self._doubtful:
                self._restore(name)
            self._subscribe(name)
        except PostroomError as error:
            self._doubtful.add(name)
            why = str(error) if str(error).startswith(f"queue '{name}") else f"queue {name!r}: {error}"
            if why != before.why:  # once: where other queues have work, nobody hears of this one otherwise
                _log.warning("not subscribed: %s", why)
            self._failed[name] = before.again(why, self._clock())
            return Unavailable(why)
        self._doubtful.discard(name)
        self._failed.pop(name, None)
        _log.info("subscribed to %s", name)
        return None

    def _restore(self, name: str) -> None:
        with self._broker.channel() as channel:
            self._carriers[name] = self._broker.topology.restore(channel, name, partly=bool(self._feeds[name]))

    def _subscribe(self, name: str) -> None:
        """Where a queue was lost, another one may have come by its name between the look and the subscription: look again, before it is believed."""
        carrier = self._carriers[name]
        fresh = []
        try:
            for queue in sorted({*carrier.queues} - {feed.queue for feed in self._feeds[name]}):
                feed = Feed(name, queue, keyed=bool(carrier.partitions), changed=self._changed, clock=self._clock)
                self._open(feed, KEYED_CREDIT if carrier.partitions else self._credit(name))
                fresh.append(feed)
            if name in self._doubtful:
                self._restore(name)
        except PostroomError:
            for feed in fresh:
                feed.close()
            raise
        with self._changed:
            self._feeds[name].extend(fresh)

    def _credit(self, carrier: str) -> int:
        return max(self._demand, self._floors[carrier])

    def _open(self, feed: Feed, credit: int) -> None:
        try:
            feed.open(self._broker.control.get(), self._name, credit=min(credit, self._prefetch), patience=self._broker.options.patience)
        except BaseException as error:
            feed.close()
            if isinstance(error, Refusal):
                raise translated(error) from None
            raise
