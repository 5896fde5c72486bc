"""A network that loses some of it: twenty rows of one key arrive in their order all the same, and what arrives twice is done once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import groupby

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from postroom.adapters import Message, Queue, Verdict, connect
from postroom.consumers import Context
from postroom.outbox.relay import Relay
from support.inprocess import effect, office
from support.outboxes import enqueue, new_row, outbox_at, statuses
from support.proxy import Proxy
from support.services import SERVICES, definitions, free_port, present_images, serving
from support.workers import eventually

ROWS = [b"%d" % number for number in range(20)]
AWHILE = 0.3
"""How long (seconds) the network loses what is on it. Nothing depends on what that was."""


@pytest.fixture(scope="module")
def network(docker_engine: None) -> Iterator[Proxy]:
    """To a Kafka that all its clients reach through here."""
    port = free_port()
    with Proxy(port) as proxy:
        wanted = definitions({**present_images(), "KAFKA_PORT": str(proxy.port)})["kafka"]
        with serving(wanted, {"9092": port}, lambda: SERVICES["kafka"].speaks(f"localhost:{proxy.port}")):
            yield proxy


@pytest.fixture
def declared(network: Proxy, topic: str) -> str:
    """The topic, made with more patience than a test has that loses records on purpose."""
    with closing(connect(f"kafka://localhost:{network.port}?partitions=1")) as adapter:
        adapter.ensure([Queue(name=topic)])
    return topic


def lose(network: Proxy, what: str) -> None:
    """Lose requests, or the answers to them, and then the connections they were on."""
    network.be_silent() if what == "requests" else network.swallow_answers()
    threading.Event().wait(AWHILE)
    network.cut()
    network.speak()


def log(network: Proxy, topic: str) -> list[bytes]:
    """All values of the topic's only partition."""
    reader = Consumer({"bootstrap.servers": f"localhost:{network.port}", "group.id": "log", "enable.partition.eof": True, "log_level": 0})
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    values: list[bytes] = []
    with closing(reader):
        while (record := reader.poll(30)) is not None and record.error() is None:
            values.append(record.value() or b"")
    return values


@pytest.mark.parametrize("lost", ["requests", "answers"])
def test_s056_a_produce_request_that_is_lost_under_way_changes_no_order_and_doubles_nothing(network: Proxy, topic: str, lost: str) -> None:
    url = f"kafka://localhost:{network.port}?partitions=1&batch.num.messages=1&retry.backoff.ms=50&reconnect.backoff.ms=50"
    with closing(connect(url)) as adapter, ThreadPoolExecutor(1) as pool:
        adapter.ensure([Queue(name=topic)])
        adapter.publish([Message(id="hello", queue=topic, body=b"hello", ordering_key="k")])
        network.be_silent() if lost == "requests" else network.swallow_answers()
        rows = [Message(id=value.decode(), queue=topic, body=value, ordering_key="k") for value in ROWS]
        outcomes = pool.submit(adapter.publish, rows)
        lose(network, lost)
        assert {outcome.verdict for outcome in outcomes.result(60)} == {Verdict.CONFIRMED}
    assert log(network, topic) == [b"hello", *ROWS]


@pytest.mark.parametrize("lost", ["requests", "answers"])
def test_s056_a_row_that_the_relay_must_send_again_holds_the_later_rows_of_its_key(
    network: Proxy, declared: str, lost: str, sqlite_database_url: str
) -> None:
    url = f"kafka://localhost:{network.port}?partitions=1&message.timeout.ms=1000&retry.backoff.ms=50&reconnect.backoff.ms=50"
    with closing(connect(url)) as adapter, outbox_at(sqlite_database_url) as engine:
        relay = Relay(engine, adapter)
        enqueue(engine, *(new_row(value.decode(), "k", queue=declared, body=value) for value in ROWS[:3]))
        eventually(lambda: set(statuses(engine).values()) == {"sent"} or not relay.run_once())  # in time only if the cluster has no more to do
        enqueue(engine, *(new_row(value.decode(), "k", queue=declared, body=value) for value in ROWS[3:]))
        network.be_silent() if lost == "requests" else network.swallow_answers()
        assert relay.run_once().unknown == 1
        lose(network, lost)
        sent = [relay.run_once().sent]
        eventually(lambda: sent.append(relay.run_once().sent) or sum(sent) == len(ROWS) - 3)
    assert [value for value, _ in groupby(log(network, declared))] == ROWS


def test_s039_a_record_that_timed_out_and_had_arrived_is_sent_again_under_its_id_and_done_once(
    network: Proxy, declared: str, sqlite_database_url: str
) -> None:
    brief = connect(f"kafka://localhost:{network.port}?partitions=1&message.timeout.ms=1000&retry.backoff.ms=50&reconnect.backoff.ms=50")
    with office(sqlite_database_url, brief, name=declared) as here:

        @here.jobs.handler("t", queue=declared)
        def handle(_: dict[str, str], context: Context) -> None:
            context.session.execute(effect(context.job.key))

        relay = Relay(here.engine, brief)
        here.enqueue("t", "before")
        eventually(lambda: relay.run_once().sent)
        here.enqueue("t", "order-4711")
        network.swallow_answers()
        assert relay.run_once().unknown == 1
        lose(network, "answers")
        eventually(lambda: relay.run_once().sent)
        copies = len(log(network, declared)) - 1
        assert copies >= 2, "it had arrived, and arrived again"
        counts = here.drain().counts
        assert (counts["done"], counts["duplicates"]) == (2, copies - 1)
        assert sorted(here.effects()) == ["before", "order-4711"]
