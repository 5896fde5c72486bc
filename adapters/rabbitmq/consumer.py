"""A subscription to carriers on RabbitMQ."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from postroom.adapters.consuming import lease_lost, require_held, require_usable
from postroom.adapters.errors import ConfigurationError, Unavailable
from postroom.adapters.seam import Delivery, Verdict
from postroom.adapters.weights import Turns

from .content import earlier_attempts, message_of
from .letters import letter_posting
from .subscriptions import Subscriptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .broker import Broker
    from .feed import Feed
    from .layout import Carrier
    from .postings import Posting
    from .shelves import Parcel

__all__ = ["RabbitConsumer"]

LONGEST_WAIT = 60.0
"""How long (seconds) a delivery may wait here unasked for, at most: half of the server's consumer timeout is for its handler in any case."""


@dataclass(frozen=True, slots=True, eq=False)
class Receipt:
    """The token of one handing-out: another one each time, and no other consumer's."""

    parcel: Parcel


class RabbitConsumer:
    """See `postroom.adapters.seam.Consumer`. It subscribes when `receive` is first called.

    RabbitMQ pushes; but of each queue no more than the caller wants in hand (what it asks for, and what is unsettled), so that others find work too.
    When a subscription is lost (queue deleted, channel or connection closed), a `receive` that waits ends, and the next one subscribes again; it
    raises Unavailable when there is no other. What came over the lost one can't be settled any more, and RabbitMQ delivers it again.
    """

    def __init__(
        self,
        broker: Broker,
        carriers: Sequence[Carrier],
        *,
        weights: Mapping[str, int],
        prefetch: int,
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker = broker
        self._carriers = {carrier.name: carrier for carrier in carriers}
        self._turns = Turns(weights)
        self._prefetch = prefetch
        self._clock = clock
        self._pid = os.getpid()
        self._longest_wait = min(LONGEST_WAIT, broker.options.consumer_timeout / 2 or LONGEST_WAIT)
        self._closed = False
        self._receiving = threading.Lock()
        self._changed = threading.Condition()
        self._subscriptions = Subscriptions(broker, carriers, self._changed, clock, weights=weights, name=name, prefetch=prefetch)
        self._unsettled: set[Receipt] = set()
        self._letters: dict[Receipt, Posting] = {}

    def receive(self, limit: int, timeout: float) -> Sequence[Delivery]:
        """Return what has come, or wait up to `timeout` seconds for it; see `Consumer.receive`. To subscribe again may take longer."""
        with self._receiving:
            self._require_open()
            late = time.monotonic() + timeout
            self._prepare(limit)
            trouble = self._subscriptions.mend()
            with self._changed:
                while not (taken := self._take(limit)) and (left := late - time.monotonic()) > 0 and self._may_come(trouble):
                    self._changed.wait(left)
                if not taken and not self._subscriptions.is_alive and (trouble := trouble or self._subscriptions.lost):
                    raise trouble
        return [_delivery(receipt) for receipt in taken]

    @property
    def troubles(self) -> Sequence[str]:
        """See `Consumer.troubles`."""
        with self._changed:
            return self._subscriptions.troubles

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """basic.ack, in a range where that is the same. Nobody confirms an ack: one that is lost on its way means a redelivery."""
        self._settle(deliveries, _acked)

    def fail(self, delivery: Delivery, error: str, delay: float = 0.0) -> None:  # noqa: ARG002 - see the seam
        """Not here."""
        raise ConfigurationError("RabbitMQ can't hold a job back (no native_delay): publish the retry when it is due, and ack this delivery")

    def release(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> None:
        """basic.nack with requeue; but a delivery of an ordered queue waits here, in front of its followers."""
        if delay:
            raise ConfigurationError("RabbitMQ can't hold a job back (no native_delay): release it when it is due")
        self._settle(deliveries, _released)

    def dead_letter(self, delivery: Delivery, reason: str) -> None:
        """Publish a copy and have it confirmed, then ack. Blocks as a publish does. Raises Unavailable when that fails: then it is still held."""
        receipt = self._require_held(delivery)
        posting = self._letters.get(receipt) or letter_posting(
            receipt.parcel, self._carriers[delivery.queue], reason, attempts=delivery.attempts + 1, user=self._broker.options.user
        )
        self._letters[receipt] = posting  # if it must be tried again it is the very same one
        (outcome,) = self._broker.publisher.post([posting.copy()])
        if outcome.verdict is not Verdict.CONFIRMED:
            raise Unavailable(f"{delivery.message.id} can't be put into the dead letters {posting.routing_key!r}: {outcome.reason}")
        self.ack([delivery])

    def extend(self, deliveries: Sequence[Delivery], lease: float) -> None:  # noqa: ARG002 - leases are not by the clock
        """Nothing to extend. But who works for long comes by here, so what has been waiting for too long goes back."""
        with self._changed:
            self._subscriptions.hand_back(self._clock() - self._longest_wait)

    def close(self) -> None:
        """Hand back what is not settled, behind all settlements. Blocks for some seconds at most. A `receive` in another thread raises Closed."""
        if self._closed or self._pid != os.getpid():
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with self._receiving:
            self._subscriptions.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def outstanding(self, carrier: str) -> int:
        """How many deliveries of a carrier are here, handed out or not."""
        with self._changed:
            return self._subscriptions.outstanding(carrier)

    def _may_come(self, trouble: Unavailable | None) -> bool:
        """Whether waiting makes sense: not when a feed has just been lost, nor when none is left."""
        self._require_open()
        return not self._subscriptions.lost and (trouble is None or self._subscriptions.is_alive)

    def _take(self, limit: int) -> list[Receipt]:
        self._require_open()
        self._subscriptions.hand_back(self._clock() - self._longest_wait)
        taken: list[Receipt] = []
        room = min(limit, self._prefetch - len(self._unsettled))
        while len(taken) < room and (ready := self._subscriptions.ready()):
            taken.append(Receipt(self._subscriptions.take(self._turns.pick(ready))))
        self._unsettled.update(taken)
        return taken

    def _settle(self, deliveries: Sequence[Delivery], settle: Callable[[Feed, Sequence[Parcel]], None]) -> None:
        """Settle what is still held here, feed by feed; raise LeaseLost for the others."""
        lost = []
        with self._changed:
            self._require_open()
            mine: defaultdict[Feed, list[Delivery]] = defaultdict(list)
            for delivery in deliveries:
                receipt = self._held(delivery)
                if receipt is None:
                    lost.append(delivery)
                else:
                    mine[receipt.parcel.feed].append(delivery)
                    self._let_go(receipt)
            for feed, held in mine.items():
                try:
                    settle(feed, [cast("Receipt", delivery.token).parcel for delivery in held])
                except Unavailable:  # its connection has gone this moment
                    lost += held
            self._changed.notify_all()
        require_held(lost)

    def _held(self, delivery: Delivery) -> Receipt | None:
        receipt = delivery.token
        return receipt if isinstance(receipt, Receipt) and receipt in self._unsettled and not receipt.parcel.feed.over else None

    def _require_held(self, delivery: Delivery) -> Receipt:
        with self._changed:
            self._require_open()
            receipt = self._held(delivery)
        if receipt is None:
            raise lease_lost([delivery])
        return receipt

    def _prepare(self, limit: int) -> None:
        """Forget what came over a feed that is over; say how many deliveries are wanted here."""
        with self._changed:
            if self._subscriptions.lost:
                for receipt in [receipt for receipt in self._unsettled if receipt.parcel.feed.over]:
                    self._let_go(receipt)
            self._subscriptions.want(limit + len(self._unsettled))

    def _let_go(self, receipt: Receipt) -> None:
        self._unsettled.discard(receipt)
        self._letters.pop(receipt, None)

    def _require_open(self) -> None:
        self._broker.control.require_open()
        require_usable(closed=self._closed, pid=self._pid)


def _acked(feed: Feed, parcels: Sequence[Parcel]) -> None:
    feed.ack({parcel.tag for parcel in parcels})
    for parcel in parcels:
        feed.shelf.settled(parcel)


def _released(feed: Feed, parcels: Sequence[Parcel]) -> None:
    """Those that the shelf does not keep go back to the broker."""
    back = [parcel.tag for parcel in reversed(parcels) if not feed.shelf.released(parcel)]
    if back:
        feed.requeue(back)


def _delivery(receipt: Receipt) -> Delivery:
    parcel = receipt.parcel
    return Delivery(
        message=message_of(parcel.properties, parcel.body, exchange=parcel.exchange, routing_key=parcel.routing_key, carrier=parcel.feed.carrier),
        queue=parcel.feed.carrier,
        token=receipt,
        attempts=earlier_attempts(parcel.properties, redelivered=parcel.redelivered),
    )
