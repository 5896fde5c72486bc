"""Kafka: the relay, the worker and the adapter beside confluent-kafka by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from brokers import jobs_rate, message, publish_rate, relay_rate
from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from pairs import Pair
from relay import plain_rate
from sqlalchemy import Engine

from postroom.adapters.sql.schema import create

ROWS = 20_000
RECORDS = 100_000
JOBS = 20_000
RAW_RECORDS = 100_000
PARTITIONS = 4
AT_ONCE = 500
COMMIT_EVERY = 0.25
QUIET = {"log_level": 0}


def relay_and_no_broker(engine: Engine, database: str, servers: str) -> Pair:
    create(engine)
    return Pair(
        name="relay to Kafka / claim and mark, no broker",
        unit="rows/s",
        ours=lambda: relay_rate(engine, _url(servers), ROWS),
        plain=lambda: plain_rate(engine, database, ROWS),
    )


def publish_and_produce(servers: str) -> Pair:
    return Pair(
        name="publish to Kafka / produce, reports for each",
        unit="msgs/s",
        ours=lambda: publish_rate(_url(servers), RECORDS),
        plain=lambda: produced_rate(servers, RECORDS),
    )


def jobs_and_consumer(engine: Engine, servers: str) -> Pair:
    create(engine)
    return Pair(
        name="no-op jobs, ledger, Kafka / consumer, no ledger",
        unit="jobs/s",
        ours=lambda: jobs_rate(engine, _url(servers), JOBS),
        plain=lambda: consumed_rate(servers, RAW_RECORDS),
    )


def jobs_and_share_consumer(engine: Engine, servers: str) -> Pair:
    create(engine)
    return Pair(
        name="the same, share group / ShareConsumer",
        unit="jobs/s",
        ours=lambda: jobs_rate(engine, f"{_url(servers)}&mode=share", JOBS),
        plain=lambda: shared_rate(servers, RAW_RECORDS),
    )


def produced_rate(servers: str, count: int) -> float:
    """Idempotent, acks=all, a report for each record, AT_ONCE flushed together: as ours, with nothing around it."""
    with _topic(servers) as topic:
        return count / _produce(servers, topic, count)


def consumed_rate(servers: str, count: int) -> float:
    """A classic consumer that commits by hand four times a second."""
    with _topic(servers) as topic:
        _produce(servers, topic, count)
        consumer = Consumer({"bootstrap.servers": servers, "group.id": topic, "enable.auto.commit": False, "auto.offset.reset": "earliest", **QUIET})
        consumer.subscribe([topic])
        taken, began, committed = 0, 0.0, time.perf_counter()
        while taken < count:
            records = consumer.consume(AT_ONCE, 1.0)
            began = began or (time.perf_counter() if records else 0.0)
            taken += len(records)
            if records and time.perf_counter() - committed > COMMIT_EVERY:
                consumer.commit(asynchronous=True)
                committed = time.perf_counter()
        consumer.commit(asynchronous=False)
        seconds = time.perf_counter() - began
        consumer.close()
    return count / seconds


def shared_rate(servers: str, count: int) -> float:
    """A share consumer that accepts each record by itself."""
    with _topic(servers) as topic:
        _produce(servers, topic, count)
        _start_at_the_beginning(servers, topic)
        consumer = ShareConsumer({"bootstrap.servers": servers, "group.id": topic, "share.acknowledgement.mode": "explicit", **QUIET})
        consumer.subscribe([topic])
        taken, began = 0, 0.0
        while taken < count:
            records = list(consumer.poll(1.0))
            began = began or (time.perf_counter() if records else 0.0)
            for record in records:
                consumer.acknowledge(record, AcknowledgeType.ACCEPT)
            taken += len(records)
        consumer.commit_sync(10.0)
        seconds = time.perf_counter() - began
        consumer.close()
    return count / seconds


def _url(servers: str) -> str:
    return f"kafka://{servers}?partitions={PARTITIONS}"


def _produce(servers: str, topic: str, count: int) -> float:
    """Return how many seconds it took."""
    messages = [message(number) for number in range(count)]
    records = [(each.body, each.id.encode(), [(name, str(value)) for name, value in each.headers.items()]) for each in messages]
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "acks": "all", "linger.ms": 1, **QUIET})
    producer.list_topics(topic, timeout=10)
    reports: list[object] = []
    began = time.perf_counter()
    for start in range(0, count, AT_ONCE):
        for body, key, headers in records[start : start + AT_ONCE]:
            producer.produce(topic, body, key, headers=headers, on_delivery=lambda error, _: reports.append(error))
        producer.flush()
    seconds = time.perf_counter() - began
    assert reports == [None] * count
    return seconds


@contextmanager
def _topic(servers: str) -> Iterator[str]:
    admin, name = AdminClient({"bootstrap.servers": servers, **QUIET}), f"bench-{uuid4().hex}"
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result()
    yield name
    admin.delete_topics([name])[name].result()


def _start_at_the_beginning(servers: str, group: str) -> None:
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": servers, **QUIET})
    admin.incremental_alter_configs([resource])[resource].result()
