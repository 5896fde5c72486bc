"""From the outbox into the queues of the same database, and of this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, update

from postroom.adapters.connect import connect
from postroom.adapters.memory import Memory
from postroom.adapters.seam import Adapter, Queue
from postroom.adapters.sql.schema import create
from postroom.outbox.envelope import read_envelope
from postroom.outbox.relay import Relay
from postroom.outbox.tables import outbox
from support.outboxes import enqueue, enqueue_ids, new_row, outbox_at, statuses


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with outbox_at(database_url) as engine:
        create(engine)
        yield engine


@pytest.fixture(params=["same database", "memory"])
def adapter(request: pytest.FixtureRequest, engine: Engine, database_url: str) -> Iterator[Adapter]:
    adapter = Memory() if request.param == "memory" else connect(database_url)
    adapter.ensure([Queue(name="emails")])
    yield adapter
    adapter.close()


def receive(adapter: Adapter, limit: int = 10):
    consumer = adapter.consume({"emails": 1}, group="emails", prefetch=limit, name="test")
    deliveries = consumer.receive(limit, 0.1)
    consumer.ack(deliveries)
    consumer.close()
    return deliveries


def test_a_job_arrives_with_its_envelope_and_its_bytes(engine, adapter):
    enqueue(engine, new_row("job-1", "order-4711", body=b'{"order_id": 4711}'))
    assert Relay(engine, adapter).drain().sent == 1
    (delivery,) = receive(adapter)
    envelope = read_envelope(delivery.message)
    assert (envelope.id, envelope.key, envelope.type, envelope.copy) == ("job-1", "order-4711", "send", 0)
    assert delivery.message.body == b'{"order_id": 4711}'
    assert envelope.enqueued_at > 1.7e9


def test_s062_a_row_sent_twice_is_one_job_where_the_queue_still_holds_it(engine, adapter):
    enqueue_ids(engine, "job-1")
    relay = Relay(engine, adapter)
    relay.run_once()
    with engine.begin() as connection:
        connection.execute(update(outbox).values(status="pending"))
    assert relay.run_once().sent == 1
    assert adapter.depth("emails")["pending"] == 1


def test_a_row_for_a_queue_nobody_declared_waits_and_is_sent_when_it_is(engine, adapter):
    enqueue(engine, new_row("job-1", queue="invoices"), new_row("job-2"))
    relay = Relay(engine, adapter)
    result = relay.run_once()
    assert (result.sent, result.held) == (1, 1)
    assert statuses(engine) == {"job-1": "pending", "job-2": "sent"}
    adapter.ensure([Queue(name="invoices")])
    with engine.begin() as connection:
        connection.execute(update(outbox).where(outbox.c.id == "job-1").values(retry_at=0.0))
    assert relay.run_once().sent == 1
