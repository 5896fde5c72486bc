"""The stage a test plays on: a connected adapter, names of its own, and waiting that never counts on speed."""

from __future__ import annotations

import itertools
import time
import uuid
from typing import TYPE_CHECKING

import pytest

from postroom.adapters.seam import Message, Queue, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from postroom.adapters.seam import Adapter, Capabilities, Consumer, Delivery, Header

    from .harness import Harness

__all__ = ["Stage", "ids"]


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    """The message ids, in order."""
    return [delivery.message.id for delivery in deliveries]


class Stage:
    """A test's adapter, with short ways to do what every test does. Whatever it opens is closed after the test."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.adapter: Adapter = harness.adapter()
        self._run = uuid.uuid4().hex[:10]
        self._serial = itertools.count(1)
        self._consumers: list[Consumer] = []

    @property
    def capabilities(self) -> Capabilities:
        """What the backend says it can do."""
        return self.adapter.capabilities

    def needs(self, *capabilities: str) -> None:
        """Skip the test, with the reason, unless the backend declares all of these."""
        for capability in capabilities:
            if not getattr(self.capabilities, capability):
                pytest.skip(f"{self.capabilities.name} declares no {capability}")

    def name(self, word: str) -> str:
        """A queue's name that no other test and no earlier run has used."""
        return f"{word}-{self._run}"

    def queue(
        self, word: str = "emails", *, ordered: bool = False, groups: tuple[str, ...] = (), priorities: Mapping[str, int] | None = None
    ) -> Queue:
        """Declare a queue."""
        queue = self.undeclared(word, ordered=ordered, groups=groups, priorities=priorities)
        self.adapter.ensure([queue])
        return queue

    def undeclared(
        self, word: str = "emails", *, ordered: bool = False, groups: tuple[str, ...] = (), priorities: Mapping[str, int] | None = None
    ) -> Queue:
        """A queue as a value only."""
        return Queue(name=self.name(word), ordered=ordered, lease=self.harness.lease, groups=groups, priorities=priorities or {})

    def message(
        self,
        queue: Queue | str,
        body: bytes = b"{}",
        *,
        key: str | None = None,
        headers: Mapping[str, Header] | None = None,
        delay: float = 0.0,
        max_attempts: int | None = None,
    ) -> Message:
        """A message with an id of its own; ids sort in the order of their making."""
        name = queue if isinstance(queue, str) else queue.name
        identity = f"{self._run}-{next(self._serial):05d}"
        return Message(id=identity, queue=name, body=body, headers=dict(headers or {}), ordering_key=key, delay=delay, max_attempts=max_attempts)

    def publish(self, *messages: Message) -> list[str]:
        """Publish; every one must be confirmed. Return the ids."""
        outcomes = self.adapter.publish(messages)
        assert [outcome.verdict for outcome in outcomes] == [Verdict.CONFIRMED] * len(messages), outcomes
        return [message.id for message in messages]

    def fill(self, queue: Queue | str, count: int, *, key: str | None = None, max_attempts: int | None = None) -> list[str]:
        """Publish `count` messages; return their ids."""
        return self.publish(*(self.message(queue, key=key, max_attempts=max_attempts) for _ in range(count)))

    def consumer(
        self, queue: Queue | str, *, prefetch: int = 50, name: str = "", group: str = "conformance", adapter: Adapter | None = None
    ) -> Consumer:
        """Subscribe to all carriers of a queue, or to the carrier of this name."""
        carriers = {queue: 1} if isinstance(queue, str) else queue.carriers
        return self.subscribe(carriers, prefetch=prefetch, name=name, group=group, adapter=adapter)

    def subscribe(
        self, carriers: Mapping[str, int], *, prefetch: int = 50, name: str = "", group: str = "conformance", adapter: Adapter | None = None
    ) -> Consumer:
        """Subscribe to carriers with weights."""
        holder = name or f"worker-{next(self._serial)}"
        consumer = (adapter or self.adapter).consume(carriers, group=group, prefetch=prefetch, name=holder)
        self._consumers.append(consumer)
        return consumer

    def receive(self, consumer: Consumer, count: int) -> list[Delivery]:
        """Wait for exactly `count` deliveries."""
        received: list[Delivery] = []
        late = time.monotonic() + self.harness.patience
        while len(received) < count and time.monotonic() < late:
            received += consumer.receive(count - len(received), self.harness.silence)
        assert len(received) == count, f"{len(received)} of {count} deliveries came within {self.harness.patience} s: {ids(received)}"
        return received

    def one(self, consumer: Consumer) -> Delivery:
        """Wait for one delivery."""
        return self.receive(consumer, 1)[0]

    def exactly(self, count: int, *consumers: Consumer) -> list[Delivery]:
        """Wait for `count` deliveries, whichever of these gets them, and see that no more come."""
        received: list[Delivery] = []
        late = time.monotonic() + self.harness.patience
        turns = itertools.cycle(consumers)
        while len(received) < count and time.monotonic() < late:
            received += next(turns).receive(count - len(received), self.harness.silence)
        received += [delivery for consumer in consumers for delivery in self.rest(consumer)]
        assert len(received) == count, f"{len(received)} deliveries instead of {count}: {ids(received)}"
        return received

    def rest(self, consumer: Consumer, limit: int = 1000) -> list[Delivery]:
        """What comes until nothing has come for a while: to see that nothing does. For what must come, a busy machine may take longer."""
        received: list[Delivery] = []
        late = time.monotonic() + self.harness.patience
        while batch := consumer.receive(limit, self.harness.silence):
            received += batch
            assert time.monotonic() < late, f"still {len(batch)} deliveries after {len(received)}: {ids(batch)}"
        return received

    def drain(self, consumer: Consumer, count: int) -> list[str]:
        """Receive and ack one after the other until `count` are done; return the ids in the order of their delivery."""
        done = []
        for _ in range(count):
            delivery = self.one(consumer)
            consumer.ack([delivery])
            done.append(delivery.message.id)
        return done

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Ask again and again, until it holds: for what a server tells with a lag."""
        late = time.monotonic() + self.harness.patience
        while not holds():
            assert time.monotonic() < late, f"did not come true within {self.harness.patience} s"
            time.sleep(self.harness.silence)

    def restart(self) -> None:
        """Restart the backend without a goodbye from its consumers; the stage's adapter is a new one."""
        self._consumers.clear()
        self.adapter = self.harness.restart()

    def expire(self) -> None:
        """Let every lease run out."""
        self.harness.advance(self.harness.lease + 1)

    def close(self) -> None:
        """Close what the test opened."""
        for consumer in self._consumers:
            consumer.close()
        self.adapter.close()
