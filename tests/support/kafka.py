"""Kafka's side of the tests: the cluster that ships inside librdkafka, and a classic consumer on it without an adapter around."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from postroom.adapters.errors import Unavailable
from postroom.adapters.kafka import config
from postroom.adapters.kafka.classic import ClassicFeed
from postroom.adapters.kafka.consumer import KafkaConsumer
from postroom.adapters.kafka.desk import Desk
from postroom.adapters.kafka.entry import Entry, Source
from postroom.adapters.kafka.letters import letter_of
from postroom.adapters.kafka.options import parse
from postroom.adapters.kafka.publisher import Publisher
from postroom.adapters.seam import Delivery, Verdict
from postroom.adapters.weights import Turns

PATIENCE = 30.0
QUICK = "session.timeout.ms=6000&heartbeat.interval.ms=100"


def wait_until(holds: Callable[[], bool]) -> None:
    late = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < late, "it did not come true"
        time.sleep(0.02)


class Mock:
    """A cluster in this process; topics of four partitions appear when they are used."""

    def __init__(self) -> None:
        self._keeper = Producer({"test.mock.num.brokers": 1, "log_level": 0})
        self.servers = ",".join(f"{broker.host}:{broker.port}" for broker in self._keeper.list_topics(timeout=10).brokers.values())
        self.url = f"kafka://{self.servers}?{QUICK}"
        self._producer = Producer({"bootstrap.servers": self.servers, "log_level": 0})

    def produce(self, topic: str, *values: bytes | None, partition: int = 0, key: bytes | None = None) -> None:
        for value in values:
            self._producer.produce(topic, value, key, partition=partition)
        assert self._producer.flush(PATIENCE) == 0

    def committed(self, topic: str, group: str, partition: int = 0) -> int:
        """The group's offset; negative when there is none."""
        client = Consumer({"bootstrap.servers": self.servers, "group.id": group, "log_level": 0})
        (found,) = client.committed([TopicPartition(topic, partition)], timeout=PATIENCE)
        client.close()
        return found.offset


class Recorder:
    """Makes clients, and keeps what it made and with which configuration."""

    def __init__(self, make: Callable[[dict[str, Any]], Any]) -> None:
        self._make = make
        self.made: list[Any] = []
        self.configs: list[dict[str, Any]] = []

    def __call__(self, settings: dict[str, Any]) -> Any:
        self.configs.append(settings)
        self.made.append(self._make(settings))
        return self.made[-1]


class Opened:
    """A consumer with the parts that it is made of."""

    def __init__(self, url: str, topic: str, *, group: str = "g", prefetch: int = 10, ordered: bool = False, make: Callable[..., Any] = Consumer):
        options = parse(url)
        source = Source(carrier=topic, topic=topic, group=group, only=None, queue=topic, ordered=ordered, dead_letter=f"{topic}.dlq")
        self.desk = Desk([topic], Turns({topic: 1}), prefetch)
        self.feed = ClassicFeed(config.consumer_config(options, group), {topic: source}, self.desk, most=100, make=make)
        self._publisher = Publisher(config.producer_config(options))
        self.consumer = KafkaConsumer(self.desk, [self.feed], self._bury)
        self.feed.start()

    def _bury(self, entry: Entry, reason: str) -> None:
        (outcome,) = self._publisher.send([letter_of(entry, reason)])
        assert outcome.verdict is Verdict.CONFIRMED

    def receive(self, count: int) -> list[Delivery]:
        """Wait for exactly so many."""
        received: list[Delivery] = []
        late = time.monotonic() + PATIENCE
        while len(received) < count and time.monotonic() < late:
            with suppress(Unavailable):
                received += self.consumer.receive(count - len(received), 0.2)
        assert len(received) == count
        return received

    def rest(self, silence: float = 0.5) -> list[Delivery]:
        received: list[Delivery] = []
        while batch := self.consumer.receive(100, silence):
            received += batch
        return received


@contextmanager
def opened(url: str, topic: str, **options: Any) -> Iterator[Opened]:
    made = Opened(url, topic, **options)
    try:
        made.feed.joined.wait(PATIENCE)
        yield made
    finally:
        made.consumer.close()


def bodies(deliveries: Sequence[Delivery]) -> list[bytes]:
    return [delivery.message.body for delivery in deliveries]


class Gate:
    """Holds whoever comes until it is opened."""

    def __init__(self) -> None:
        self.reached, self._open = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        self.reached.set()
        assert self._open.wait(PATIENCE)

    def open(self) -> None:
        self._open.set()
