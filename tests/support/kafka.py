"""Kafka's side of the tests: the cluster that ships inside librdkafka, and a classic consumer on it without an adapter around."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from postroom.adapters.errors import LeaseLost, Unavailable
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
QUICKER = "session.timeout.ms=2000&heartbeat.interval.ms=100"
"""Less than a server allows. The mock waits for almost as long at each rebalance but a group's first."""


def wait_until(holds: Callable[[], bool]) -> None:
    late = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < late, "it did not come true"
        time.sleep(0.02)


def _library() -> str:
    """The client library's own file, as its wheel brings it."""
    package = Path(confluent_kafka.__file__).parent
    return str(next(file for folder in (package.with_name("confluent_kafka.libs"), package / ".dylibs") for file in folder.glob("librdkafka*")))


class Mock:
    """A cluster in this process; topics of four partitions appear when they are used. Its groups form without the delay that it has by default."""

    def __init__(self) -> None:
        library = ctypes.CDLL(_library())
        library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = library.rd_kafka_mock_cluster_new.restype = ctypes.c_void_p
        library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        keeper = library.rd_kafka_new(0, ctypes.c_void_p(library.rd_kafka_conf_new()), None, ctypes.c_size_t(0))
        cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(ctypes.c_void_p(keeper), 1))
        library.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, ctypes.c_int32(0))
        self.servers = library.rd_kafka_mock_cluster_bootstraps(cluster).decode()
        self.url = f"kafka://{self.servers}?{QUICKER}&allow.auto.create.topics=true"
        self._producer = Producer({"bootstrap.servers": self.servers, "log_level": 0})

    def produce(self, topic: str, *values: bytes | None, partition: int = 0, key: bytes | None = None, headers: Sequence[Any] = ()) -> None:
        for value in values:
            self._producer.produce(topic, value, key, partition=partition, headers=[*headers])
        assert self._producer.flush(PATIENCE) == 0

    def produce_unreadable(self, topic: str, value: bytes) -> None:
        """A record with a header whose name is no UTF-8, which only programs in other languages can make."""
        handle = ctypes.c_void_p.from_address(id(self._producer) + object.__basicsize__)
        named, valued, copied, headed = (
            (1, topic.encode()),
            (4, value, ctypes.c_size_t(len(value))),
            (7, 2),
            (9, b"bad\xff", b"v", ctypes.c_ssize_t(1)),
        )
        place = (3, ctypes.c_int32(0))
        assert ctypes.CDLL(_library()).rd_kafka_producev(handle, *named, *place, *valued, *copied, *headed, 0) == 0
        assert self._producer.flush(PATIENCE) == 0

    def committed(self, topic: str, partition: int = 0) -> int:
        """The offset of the group of the same name; negative when there is none."""
        client = Consumer({"bootstrap.servers": self.servers, "group.id": topic, "log_level": 0})
        (found,) = client.committed([TopicPartition(topic, partition)], timeout=PATIENCE)
        client.close()
        return found.offset


def make_fatal(client: Producer) -> None:
    """Put a producer into the state that it can't leave, as librdkafka's own tests do; behind the object's head lies the address of its client."""
    handle = ctypes.c_void_p.from_address(id(client) + object.__basicsize__)
    ctypes.CDLL(_library()).rd_kafka_test_fatal_error(handle, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, b"made by a test")


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
    """A consumer with the parts that it is made of. Its group has the name of its topic."""

    def __init__(self, url: str, topic: str, *, prefetch: int = 10, ordered: bool = False, make: Callable[..., Any] = Consumer):
        options = parse(url)
        source = Source(carrier=topic, topic=topic, group=topic, only=None, queue=topic, ordered=ordered, dead_letter=f"{topic}.dlq")
        self.desk = Desk([topic], Turns({topic: 1}), prefetch)
        self.feed = ClassicFeed(config.consumer_config(options, topic), {topic: source}, self.desk, most=100, make=make)
        self._publisher = Publisher(config.producer_config(options))
        self.consumer = KafkaConsumer(self.desk, [self.feed.keeper], self._bury)
        self.feed.keeper.start()

    def _bury(self, entry: Entry, reason: str) -> None:
        (outcome,) = self._publisher.send([letter_of(entry, reason)])
        assert outcome.verdict is Verdict.CONFIRMED, outcome

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
        made.feed.keeper.joined.wait(PATIENCE)
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


def lost_by(made: Opened, deliveries) -> list:
    """Ack these; return those that were lost to this consumer."""
    try:
        made.consumer.ack(deliveries)
    except LeaseLost as lost:
        return list(lost.lost)
    return []


class Spy(Consumer):
    """A real client that notes what is asked of it."""

    def __init__(self, settings) -> None:
        super().__init__(settings)
        self.commits: list[list] = []
        self.assignments = self.pauses = 0
        self._started = time.monotonic()
        self._polled_at = self._started

    def poll(self, timeout):
        self._polled_at = time.monotonic()
        return super().poll(timeout)

    def commit(self, *, offsets, asynchronous):
        self.commits.append(offsets)
        return super().commit(offsets=offsets, asynchronous=asynchronous)

    def pause(self, partitions):
        self.pauses += 1
        super().pause(partitions)

    def named(self) -> list[int]:
        """The offsets of the first partition that were committed, one after the other."""
        return [offset.offset for commit in self.commits for offset in commit if offset.partition == 0]

    def incremental_assign(self, partitions):
        self.assignments += 1
        super().incremental_assign(partitions)

    def never_went_back(self) -> bool:
        """Whether the offsets committed for each partition only ever grew."""
        grown: dict[int, list[int]] = {}
        for offset in (offset for commit in self.commits for offset in commit):
            grown.setdefault(offset.partition, []).append(offset.offset)
        return all(offsets == sorted(offsets) for offsets in grown.values())

    def spans_polls(self, seconds: float) -> bool:
        """Whether it was polled for so long, and a moment ago."""
        return self._polled_at - self._started > seconds


class Greedy(Consumer):
    """A real client that fills its batches up to the ends of all partitions."""

    def consume(self, number, timeout):
        return super().consume(number, max(timeout, 0.5))
