"""One queue's deliveries on one channel, from its subscription to its end. What comes after a reconnection is another feed."""

from __future__ import annotations

import zlib
from functools import partial
from typing import TYPE_CHECKING

from .channel import Channel
from .content import ordering_key
from .shelves import KeyedShelf, Parcel, PlainShelf

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from collections.abc import Set as AbstractSet
    from threading import Condition

    from pika import BasicProperties
    from pika.channel import Channel as PikaChannel
    from pika.spec import Basic

    from .connection import Connection
    from .shelves import Shelf

__all__ = ["KEYED_CREDIT", "Feed"]

KEYED_CREDIT = 64
"""How many deliveries of a partition to have here at most, so that keys behind a busy one are found. Its queue has no other reader."""
LONGEST_TAG = 255


class Feed:
    """The epoch of its delivery tags: they are sent on this channel or never, and once it is over none is.

    `changed` is its consumer's lock, notified when something arrives or ends; the consumer holds it around `ack`, `requeue` and the shelf.
    """

    def __init__(self, carrier: str, queue: str, *, keyed: bool, changed: Condition, clock: Callable[[], float]) -> None:
        self.carrier = carrier
        self.queue = queue
        self.over = ""
        """Why nothing comes any more and nothing can be settled; empty while it lives."""
        self.shelf: Shelf = KeyedShelf() if keyed else PlainShelf()
        self._keyed = keyed
        self._changed = changed
        self._clock = clock
        self._credit = 0
        self._name = ""
        self._serial = 0  # of the subscription: each change of credit is another one
        self._channel: Channel | None = None
        self._outstanding: set[int] = set()
        self._lowest = 1  # no tag below it is outstanding

    def open(self, connection: Connection, consumer: str, *, credit: int, patience: float) -> None:
        """Subscribe, for `credit` deliveries at a time. Blocks as `Channel` does; raises Unavailable or Refusal."""
        self._name = f"{consumer} {self.queue}"
        self._credit = credit
        channel = self._channel = Channel(connection, patience, ended=self._end)
        channel.ask("basic_qos", prefetch_count=self._credit)
        channel.tell(lambda raw: raw.add_on_cancel_callback(self._cancelled))
        channel.ask(
            "basic_consume",
            queue=self.queue,
            consumer_tag=self._tag,
            on_message_callback=self._arrive,
            arguments={"x-priority": _rank(self._name)} if self._keyed else None,
        )

    def grow(self, demand: int) -> None:
        """Subscribe for more at a time, by a quarter at least. Not where keys have an order: another reader might get in between."""
        if demand > self._credit and not self._keyed:
            self._resubscribe(max(demand, self._credit + self._credit // 4))

    def shrink(self, demand: int, before: float) -> None:
        """What has lain here idle since `before` goes back, for others to do, and no more come at a time than are wanted."""
        if idle := self.shelf.overdue(before):
            self.requeue([parcel.tag for parcel in idle])
            if demand < self._credit:
                self._resubscribe(demand)

    def close(self) -> None:
        """Hand back all that is not settled, behind every settlement so far. Blocks as `Channel.close` does."""
        self._end("closed")
        if self._channel is not None:
            self._channel.close()

    @property
    def is_ready(self) -> bool:
        """Whether there is a delivery to take."""
        return not self.over and self.shelf.is_ready

    @property
    def outstanding(self) -> int:
        """How many deliveries are not settled, those on the shelf included."""
        return len(self._outstanding)

    def ack(self, tags: AbstractSet[int]) -> None:
        """They are done with: one range as far as all in it are, the rest one by one."""
        self._outstanding.difference_update(tags)
        upto, highest = 0, max(tags)
        while self._lowest <= highest and self._lowest not in self._outstanding:
            upto = self._lowest if self._lowest in tags else upto
            self._lowest += 1
        self._tell(partial(_acks, upto, sorted(tag for tag in tags if tag > upto)))

    def requeue(self, tags: Collection[int]) -> None:
        """The broker is to have them back, in the order it sent them."""
        self._outstanding.difference_update(tags)
        self._tell(partial(_nacks, sorted(tags)))

    def _resubscribe(self, credit: int) -> None:
        before = self._tag
        self._credit = credit
        self._serial += 1
        self._tell(partial(_resubscribe, before, self._tag, self.queue, credit, self._arrive))

    @property
    def _tag(self) -> str:
        return f"{self._name} {self._serial}"[-LONGEST_TAG:]

    def _tell(self, say: Callable[[PikaChannel], None]) -> None:
        if self._channel is not None:
            self._channel.tell(say)

    def _arrive(self, _: PikaChannel, method: Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
        parcel = Parcel(
            feed=self,
            tag=method.delivery_tag,
            exchange=method.exchange,
            routing_key=method.routing_key,
            redelivered=method.redelivered,
            properties=properties,
            body=body,
            key=ordering_key(properties) if self._keyed else None,
            arrived=self._clock(),
        )
        with self._changed:
            self._outstanding.add(parcel.tag)
            self.shelf.put(parcel)
            self._changed.notify()

    def _cancelled(self, _: object) -> None:
        self._end(
            "RabbitMQ cancelled the subscription: the queue was deleted, can't be read for now, or a delivery was held past the consumer timeout"
        )

    def _end(self, why: str) -> None:
        with self._changed:
            self.over = self.over or why
            self._changed.notify_all()


def _acks(upto: int, tags: Sequence[int], raw: PikaChannel) -> None:
    if upto:
        raw.basic_ack(upto, multiple=True)
    for tag in tags:
        raw.basic_ack(tag)


def _nacks(tags: Sequence[int], raw: PikaChannel) -> None:
    for tag in tags:
        raw.basic_nack(tag, requeue=True)


def _resubscribe(before: str, after: str, queue: str, credit: int, arrive: Callable[..., None], raw: PikaChannel) -> None:
    raw.basic_cancel(before)
    raw.basic_qos(prefetch_count=credit)
    raw.basic_consume(queue, arrive, consumer_tag=after)


def _rank(name: str) -> int:
    """Of several consumers of an ordered queue each is preferred for other partitions, so that they share them (RabbitMQ 4; before, first come)."""
    return zlib.crc32(name.encode()) % 1000
