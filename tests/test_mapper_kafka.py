"""Events of Debezium and of anybody, on a real Kafka: mapped, tried again, given up, replayed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from postroom.adapters import Message, Queue, TopologyMismatch, connect
from postroom.adapters.kafka.adapter import KafkaAdapter
from postroom.consumers import Context, Fail, MappedJob
from postroom.consumers.replay import Fate
from support.foreign import command_on, dead, failing, replay
from support.inprocess import Office, office


@pytest.fixture
def command(sqlite_database_url: str) -> Callable[..., str]:
    return command_on(sqlite_database_url)


@pytest.fixture(params=["classic", "share"])
def kafka_url(request: pytest.FixtureRequest, kafka_bootstrap: str) -> str:
    return f"kafka://{kafka_bootstrap}?mode={request.param}&partitions=2&topic.metadata.refresh.interval.ms=2000"


@pytest.fixture
def there(kafka_url: str, tmp_path: Path) -> Iterator[Office]:
    with office(f"sqlite:///{tmp_path}/postroom.db", connect(kafka_url)) as made:
        yield made


def make_topic(bootstrap: str, name: str) -> None:
    """As its owner has: other settings than ours would be."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(name, 3, 1, config={"cleanup.policy": "compact,delete"})]).values():
        future.result(30)


def produce(bootstrap: str, topic: str, *records: tuple[bytes, bytes | None, list[tuple[str, bytes | None]]]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for key, value, headers in records:
        producer.produce(topic, value, key, headers=headers, partition=0)
    assert producer.flush(30) == 0


def event(order: int, event_id: str, type_: str = "OrderPlaced") -> tuple[bytes, bytes, list[tuple[str, bytes | None]]]:
    """As the outbox event router writes it: the payload column as the value, aggregateid as the key, id (and type, if it is told to) as headers."""
    return str(order).encode(), json.dumps({"id": order}).encode(), [("id", event_id.encode()), ("eventType", type_.encode())]


def end_of(bootstrap: str, topic: str) -> int:
    """How many records its partition 0 has ever had."""
    from confluent_kafka import Consumer  # noqa: PLC0415 - one use

    client = Consumer({"bootstrap.servers": bootstrap, "group.id": "tests", "log_level": 0})
    _, end = client.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    client.close()
    return end


def from_debezium(message: Message) -> MappedJob:
    return MappedJob(type=str(message.headers["eventType"]), key=str(message.headers["id"]), payload=json.loads(message.body))


def test_s042_s043_debezium_events_are_mapped_a_tombstone_is_passed_over_and_an_empty_value_is_a_dead_letter(
    kafka_bootstrap: str, there: Office, name: str
) -> None:
    make_topic(kafka_bootstrap, name)
    theirs = Queue(name=name, foreign=True)
    seen: list[tuple[str, Any, dict[str, Any]]] = []
    met: list[Message] = []

    @there.jobs.mapper(queue=theirs)
    def mapper(message: Message) -> MappedJob:
        met.append(message)
        return from_debezium(message)

    @there.jobs.handler("OrderPlaced", queue=theirs)
    def placed(order: dict[str, Any], context: Context) -> None:
        seen.append((context.job.key, order, dict(context.job.headers)))

    key, value, headers = event(1, "e-1")
    strange: list[tuple[str, bytes | None]] = [*headers, ("raw", b"\xff\xfe"), ("none", None), ("twice", b"1"), ("twice", b"2")]
    produce(kafka_bootstrap, name, (key, value, strange), (b"1", None, []), (b"\xff", b"", []), event(2, "e-2"))
    assert there.drain().counts == {"done": 2, "dead": 1}
    assert sorted(key for key, _, _ in seen) == ["e-1", "e-2"]
    told = {key: (order, headers) for key, order, headers in seen}
    assert told["e-1"] == ({"id": 1}, {"id": "e-1", "eventType": "OrderPlaced", "raw": b"\xff\xfe", "none": None, "twice": "2"})
    first = next(message for message in met if message.headers.get("id") == "e-1")
    assert (first.ordering_key, first.id) == ("1", f"{name}-0-0")
    assert {name: first.properties[name] for name in ("topic", "partition", "offset")} == {"topic": name, "partition": 0, "offset": 0}
    assert there.entry("e-1").enqueued_at == first.properties["timestamp"]
    [letter] = dead(there, name)
    assert (letter.message.body, letter.message.ordering_key, letter.message.id) == (b"", "\\xff", f"{name}-0-2")
    assert "mapper" in letter.error


def test_retries_of_events_go_to_a_topic_of_ours_and_theirs_gets_nothing(kafka_bootstrap: str, there: Office, name: str) -> None:
    make_topic(kafka_bootstrap, name)
    theirs = Queue(name=name, foreign=True)
    met: list[Message] = []
    runs = failing(there, theirs, attempts=2, met=met)
    key, value, headers = event(4711, "e-1")
    produce(kafka_bootstrap, name, (key, value, [*headers, ("raw", b"\xff")]))
    assert there.drain().failed == 1
    retry = f"{name}.retry"
    assert runs == [(name, 1), (retry, 2)]
    same = [(message.id, message.body, message.headers, message.ordering_key, message.properties) for message in met]
    assert same[0] == same[1]
    [letter] = dead(there, name, retry)
    assert letter.envelope is not None
    assert (letter.message.body, letter.message.headers["raw"], letter.envelope.key) == (value, b"\xff", "order-4711")
    assert replay(there, name, retry) == {Fate.REPLAYED: 1}
    there.drain()
    assert runs[-1] == (retry, 1)
    assert there.entry("order-4711").status == "done"
    assert met[-1].properties == met[0].properties
    assert end_of(kafka_bootstrap, name) == 1


def test_an_event_that_died_at_its_first_attempt_is_known_by_its_key_and_replayed_beside_their_topic(
    kafka_bootstrap: str, there: Office, name: str
) -> None:
    make_topic(kafka_bootstrap, name)
    theirs = Queue(name=name, foreign=True)
    broken = [True]
    met: list[Message] = []

    @there.jobs.mapper(queue=theirs)
    def mapper(message: Message) -> MappedJob:
        met.append(message)
        return from_debezium(message)

    @there.jobs.handler("OrderPlaced", queue=theirs)
    def placed(_order: Any) -> None:
        if broken:
            raise Fail("no such customer")

    produce(kafka_bootstrap, name, event(1, "e-1"))
    there.drain()
    [letter] = dead(there, name)
    assert letter.envelope is not None
    assert (letter.envelope.type, letter.envelope.key) == ("OrderPlaced", "e-1")
    broken.clear()
    assert replay(there, name) == {Fate.REPLAYED: 1}
    assert there.drain().counts == {"done": 1}
    assert (met[-1].id, met[-1].properties) == (met[0].id, met[0].properties)
    assert (there.entry("e-1").replays, end_of(kafka_bootstrap, name)) == (1, 1)


def test_a_foreign_topic_must_be_there_and_is_neither_made_nor_compared(kafka_bootstrap: str, there: Office, name: str) -> None:
    theirs = Queue(name=name, foreign=True)
    for passive in (True, False):
        with pytest.raises(TopologyMismatch, match=f"expected another program to have made its topic '{name}', and it is not there"):
            there.adapter.ensure([theirs], passive=passive)
    make_topic(kafka_bootstrap, name)  # with three partitions, where ours would have two
    with pytest.raises(TopologyMismatch, match="expected it to be declared, and it is not there"):
        there.adapter.ensure([theirs], passive=True)
    there.adapter.ensure([theirs])
    there.adapter.ensure([theirs], passive=True)
    topics = AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0}).list_topics(timeout=30).topics
    assert {topic: len(topics[topic].partitions) for topic in (name, f"{name}.retry", f"{name}.dlq")} == {
        name: 3,
        f"{name}.retry": 2,
        f"{name}.dlq": 1,
    }
    with pytest.raises(TopologyMismatch, match="expected retries ''"):
        there.adapter.ensure([Queue(name=name)])
    assert isinstance(there.adapter, KafkaAdapter)


def test_the_example_does_what_debezium_and_others_have_written(kafka_bootstrap: str, command: Any) -> None:
    url = f"kafka://{kafka_bootstrap}"
    for topic in ("outbox.event.order", "payments"):
        make_topic(kafka_bootstrap, topic)
    produce(kafka_bootstrap, "outbox.event.order", event(4711, "4d47e190-0402-4048-bc2c-89dd54343cdc"), (b"4711", None, []))
    produce(kafka_bootstrap, "payments", *[(b"", json.dumps({"id": amount, "amount": amount}).encode(), []) for amount in (0, 5)], (b"", b"{", []))
    command(url, 0, "declare", "events:jobs")
    said = command(url, 1, "work", "events:jobs", "--drain")
    assert "given up meanwhile: 1" in said
    assert "placed order 4711" in said
    assert "booked 5" in said
    assert "a tombstone is passed over" in said
    assert "is no job, says its mapper" in said
    assert json.loads(command(url, 0, "status", "payment-5", "--json"))["status"] == "done"
    assert "mapper from_json of queue 'payments': JSONDecodeError" in command(url, 0, "dead", "list", "--json")
