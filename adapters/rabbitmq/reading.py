"""Reading a queue without consuming it: one reader at a time takes messages in hand, looks, and puts them back."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Self

from postroom.adapters.errors import ConfigurationError, Unavailable

from .refusals import ACCESS_REFUSED, LOCKED, NOT_FOUND, Refusal, translated
from .topology import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from pika import BasicProperties
    from pika.channel import Channel as PikaChannel
    from pika.spec import Basic

    from .broker import Broker

__all__ = ["Found", "Reading"]

MOST = 1000
"""How many messages to ask for at once."""
PAUSE = 0.02
"""How long (seconds) to leave another reader alone before asking again."""
SETTLING = 2.0
"""How long (seconds) to wait at most until the broker shows again what was put back."""


@dataclass(frozen=True, slots=True)
class Found:
    """One message in hand."""

    tag: int
    properties: BasicProperties
    body: bytes


class Reading:
    """Use it in a `with`. What was not removed is back at the end; also when this process dies: its channel goes with it.

    Of two readers that take turns at single messages neither would see all, so there is a lock: a queue beside this one that only one may consume.
    Entering blocks until it is free, for `Options.patience` seconds at most. Raises Unavailable, or ConfigurationError when there is no such queue.
    """

    def __init__(self, broker: Broker, queue: str) -> None:
        self._patience = broker.options.patience
        self._queue = queue
        self._channel = broker.channel()
        self._arrived: SimpleQueue[Found] = SimpleQueue()
        self._ready = self._asked = self._seen = self._removed = 0
        self._in_hand: list[list[int]] = []
        """The tags of what is in hand, for each consumer that was asked for some."""

    def __enter__(self) -> Self:
        try:
            self._lock()
            self._ready = self._count()
        except BaseException:
            self._channel.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None and self._asked:
                self._put_back()
        finally:
            self._channel.close()

    def messages(self, first: int) -> Iterator[Found]:
        """All there are, oldest first; each is in hand from then on. `first` is how many the caller expects to need."""
        size = max(first, 1)
        while left := self._ready - self._asked:
            self._ask(min(size, MOST, left))
            while self._missing:
                yield self._next()
            size *= 10

    def remove(self, found: Sequence[Found]) -> None:
        """These don't go back."""
        tags = {message.tag for message in found}
        self._channel.tell(partial(_acks, sorted(tags)))
        self._in_hand = [[tag for tag in part if tag not in tags] for part in self._in_hand]
        self._removed += len(tags)

    def _lock(self) -> None:
        late = time.monotonic() + self._patience
        while not self._is_alone():
            if time.monotonic() > late:
                raise Unavailable(f"somebody else has been reading {self._queue!r} for {self._patience:g} s")
            time.sleep(PAUSE)

    def _is_alone(self) -> bool:
        """The lock goes with this channel, or its connection. Others of this connection are kept out by the consumer, the rest by the queue."""
        name = f"{self._queue}#reading"
        try:
            self._channel.ask("queue_declare", queue=name, exclusive=True, auto_delete=True)
            self._channel.ask("basic_consume", queue=name, exclusive=True, on_message_callback=lambda *_: None)
        except Refusal as refusal:
            if refusal.code in {LOCKED, NOT_FOUND} or (refusal.code == ACCESS_REFUSED and "exclusive use" in refusal.text):
                return False
            raise translated(refusal) from None
        return True

    def _count(self) -> int:
        found = count(self._channel, self._queue)
        if found is None:
            raise ConfigurationError(f"queue {self._queue!r} is not declared: declare it with ensure() first")
        return found

    @property
    def _missing(self) -> int:
        """How many were asked for and have not come yet."""
        return self._asked - self._seen

    def _ask(self, size: int) -> None:
        """Have so many more sent, to another consumer each time: what the earlier ones were given is still in hand."""
        self._stop()
        self._asked += size
        self._in_hand.append([])
        self._channel.ask("basic_qos", prefetch_count=size)
        self._channel.ask("basic_consume", queue=self._queue, consumer_tag=f"reader {self._asked}", on_message_callback=self._arrive)

    def _arrive(self, _: PikaChannel, method: Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
        self._arrived.put(Found(method.delivery_tag, properties, body))

    def _next(self) -> Found:
        try:
            found = self._arrived.get(timeout=self._patience)
        except Empty:
            raise Unavailable(f"{self._queue!r} has {self._missing} messages more, and RabbitMQ sent none for {self._patience:g} s") from None
        self._seen += 1
        self._in_hand[-1].append(found.tag)
        return found

    def _stop(self) -> None:
        if self._asked:
            self._channel.ask("basic_cancel", consumer_tag=f"reader {self._asked}")

    def _put_back(self) -> None:
        """Only when all have come, and consumer by consumer: else the broker takes them back in any order."""
        while self._missing:
            self._next()
        self._stop()
        self._channel.tell(partial(_nacks, [part[-1] for part in self._in_hand if part]))
        late = time.monotonic() + SETTLING
        while self._count() < self._ready - self._removed and time.monotonic() < late:
            time.sleep(PAUSE)


def _acks(tags: Sequence[int], raw: PikaChannel) -> None:
    for tag in tags:
        raw.basic_ack(tag)


def _nacks(upto: Sequence[int], raw: PikaChannel) -> None:
    for tag in upto:
        raw.basic_nack(tag, multiple=True, requeue=True)
