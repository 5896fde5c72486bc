"""Messages that Celery and Spring send, bytes and properties as theirs are, on a real RabbitMQ: mapped, tried again, given up, replayed."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pika
import pika.data
import pytest

from postroom.adapters import Message, Queue, TopologyMismatch, connect
from postroom.adapters.errors import ConfigurationError
from postroom.consumers import Context, Fail, MappedJob
from postroom.consumers.replay import Fate
from support.foreign import command_on, dead, failing, replay
from support.inprocess import SOON, Office, office
from support.rabbit import raw


@pytest.fixture
def command(sqlite_database_url: str) -> Callable[..., str]:
    return command_on(sqlite_database_url)


def celery_declares(channel: Any, name: str) -> None:
    """What kombu declares for a Celery application with the defaults: exchange and queue of one name, durable, of the classic type."""
    channel.exchange_declare(name, "direct", durable=True)
    channel.queue_declare(name, durable=True)
    channel.queue_bind(name, name, name)


def celery_sends(channel: Any, name: str, task: str, **kwargs: Any) -> tuple[bytes, pika.BasicProperties]:
    """`task.delay(**kwargs)`: message protocol 2."""
    task_id = str(uuid.uuid4())
    body = json.dumps([[], kwargs, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]).encode()
    headers = {
        "lang": "py",
        "task": task,
        "id": task_id,
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": task_id,
        "parent_id": None,
        "argsrepr": "()",
        "kwargsrepr": repr(kwargs),
        "origin": "gen17@web-1",
        "ignore_result": False,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }
    properties = pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        headers=headers,
        delivery_mode=2,
        priority=0,
        correlation_id=task_id,
        reply_to="0a1b2c3d-reply",
    )
    channel.basic_publish(name, name, body, properties)
    return body, properties


def spring_sends(channel: Any, queue: str, order: object, type_id: str = "com.example.Order") -> None:
    """`rabbitTemplate.convertAndSend(queue, order)` with a Jackson2JsonMessageConverter."""
    properties = pika.BasicProperties(
        content_type="application/json", content_encoding="UTF-8", headers={"__TypeId__": type_id}, delivery_mode=2, priority=0
    )
    channel.basic_publish("", queue, json.dumps(order, separators=(",", ":")).encode(), properties)


def first_of(channel: Any, queue: str) -> tuple[pika.BasicProperties, bytes]:
    """Look at the first message."""
    method, properties, body = channel.basic_get(queue)
    assert method is not None, f"{queue} is empty"
    channel.basic_nack(method.delivery_tag)
    return properties, body


def of_users(headers: dict[str, Any]) -> dict[str, Any]:
    """All but Postroom's and RabbitMQ's own."""
    return {name: value for name, value in headers.items() if not name.startswith(("postroom-", "x-"))}


@contextmanager
def at_rabbit(url: str, folder: Path) -> Iterator[Office]:
    with office(f"sqlite:///{folder}/postroom.db", connect(url)) as made:
        yield made


@pytest.fixture
def here(rabbitmq_url: str, tmp_path: Path) -> Iterator[Office]:
    with at_rabbit(rabbitmq_url, tmp_path) as made:
        yield made


def test_the_example_does_what_celery_and_spring_have_sent_and_leaves_their_queues_alone(rabbitmq_url: str, command: Any) -> None:
    with raw(rabbitmq_url) as channel:
        assert "'celery': expected another program to have declared it, and it is not there" in command(rabbitmq_url, 2, "declare", "mapped:jobs")
        celery_declares(channel, "celery")
        channel.queue_declare("spring.orders", durable=True)
        command(rabbitmq_url, 1, "declare", "--passive", "mapped:jobs")
        assert "celery.retry" in command(rabbitmq_url, 0, "declare", "mapped:jobs")
        command(rabbitmq_url, 0, "declare", "--passive", "mapped:jobs")
        celery_sends(channel, "celery", "shop.tasks.ship", order_id=4711)
        celery_sends(channel, "celery", "shop.tasks.sweep")
        body, properties = celery_sends(channel, "celery", "shop.tasks.ship", customer=1)
        spring_sends(channel, "spring.orders", {"orderId": 4712})
        said = command(rabbitmq_url, 1, "work", "mapped:jobs", "--drain")
        assert "given up meanwhile: 1" in said
        assert "shipped order 4711" in said
        assert "invoiced order 4712" in said
        assert "is no job, says its mapper" in said
        assert json.loads(command(rabbitmq_url, 0, "status", "order-4711", "--json"))["status"] == "done"
        [letter] = [json.loads(line) for line in command(rabbitmq_url, 0, "dead", "list", "--app", "mapped:jobs", "--json").splitlines()]
        assert letter["error"] == "mapper from_celery of queue 'celery': KeyError: 'order_id'"
        found, untouched = first_of(channel, "celery.dlq")
        assert (untouched, of_users(found.headers)) == (body, properties.headers)
        assert (found.content_type, found.correlation_id, found.reply_to) == ("application/json", properties.correlation_id, "0a1b2c3d-reply")
        celery_declares(channel, "celery")  # as Celery does at its next start: nothing about it has changed
        for queue in ("celery", "celery.retry", "celery.dlq", "spring.orders", "spring.orders.retry", "spring.orders.dlq"):
            channel.queue_delete(queue)


def test_a_celery_task_that_is_given_up_after_retries_has_its_bytes_headers_and_properties_and_can_be_replayed(
    rabbitmq_url: str, here: Office, name: str
) -> None:
    met: list[Message] = []
    runs = failing(here, Queue(name=name, foreign=True), attempts=3, met=met)
    retry = f"{name}.retry"
    with raw(rabbitmq_url) as channel:
        celery_declares(channel, name)
        body, sent = celery_sends(channel, name, "shop.tasks.ship", order_id=4711)
        assert here.drain().failed == 1
        assert runs == [(name, 1), (retry, 2), (retry, 3)]
        first, *others = [(message.id, message.body, message.headers, message.ordering_key, message.properties) for message in met]
        assert others == [first, first]
        assert (met[0].properties["correlation_id"], met[0].properties["routing_key"]) == (sent.correlation_id, name)
        assert met[0].properties["headers"] == {"timelimit": [None, None], "stamps": {}}
        [letter] = dead(here, name, retry)
        assert letter.envelope is not None
        assert (letter.queue, letter.envelope.key, letter.message.body) == (retry, "order-4711", body)
        found, untouched = first_of(channel, f"{retry}.dlq")
        assert (untouched, of_users(found.headers)) == (body, sent.headers)
        kept = ("content_type", "content_encoding", "correlation_id", "reply_to", "priority")
        assert [getattr(found, each) for each in kept] == [getattr(sent, each) for each in kept]
        assert replay(here, name, retry) == {Fate.REPLAYED: 1}
        here.drain()
        assert (runs[3:], here.entry("order-4711").status) == ([(retry, 1)], "done")
        assert (met[3].id, met[3].headers, met[3].properties) == (first[0], first[2], first[4])


def test_a_spring_message_that_died_at_its_first_attempt_is_known_by_its_key_and_replayed(rabbitmq_url: str, here: Office, name: str) -> None:
    theirs = Queue(name=name, foreign=True)
    broken = [True]
    ids: list[str] = []

    @here.jobs.mapper(queue=theirs)
    def from_spring(message: Message) -> MappedJob:
        assert message.properties["content_type"] == "application/json"
        ids.append(message.id)
        order = json.loads(message.body)
        return MappedJob(type=str(message.headers["__TypeId__"]), key=f"order-{order['orderId']}", payload=order)

    @here.jobs.handler("com.example.Order", queue=theirs)
    def invoice(_order: Any) -> None:
        if broken:
            raise Fail("no such customer")

    with raw(rabbitmq_url) as channel:
        channel.queue_declare(name, durable=True)
        spring_sends(channel, name, {"orderId": 4711, "items": [1, 2]})
        here.drain()
        [letter] = dead(here, name)
        assert letter.envelope is not None
        assert (letter.envelope.type, letter.envelope.key, letter.digest) == ("com.example.Order", "order-4711", here.entry("order-4711").digest)
        broken.clear()
        with at_rabbit(rabbitmq_url, Path(here.engine.url.database or "").parent) as operator:  # who has declared nothing
            assert replay(operator, name) == {Fate.REPLAYED: 1}
        assert here.drain().counts == {"done": 1}
        entry = here.entry("order-4711")
        assert (entry.status, entry.replays, len(set(ids))) == ("done", 1, 1)
        assert channel.queue_declare(name, passive=True).method.message_count == 0


def test_unusual_headers_and_missing_properties_break_nothing(rabbitmq_url: str, here: Office, name: str) -> None:
    theirs = Queue(name=name)  # one of ours, into which others publish
    here.adapter.ensure([theirs])
    met: dict[bytes, Message] = {}

    @here.jobs.mapper(queue=name)
    def any_(message: Message) -> MappedJob:
        met[message.body] = message
        return MappedJob(type="ship", key=message.body.decode() or "empty", payload=None)

    @here.jobs.handler("ship", queue=theirs, backoff=SOON, max_attempts=2)
    def ship(_: Any, context: Context) -> None:
        if context.job.attempt == 1:
            raise RuntimeError("once more, through the outbox")

    strange = {
        "when": datetime(2026, 1, 2, tzinfo=UTC),
        "price": Decimal("9.99"),
        "raw": b"\xff\xfe",
        "table": {"list": [1, {"deep": b"\xff"}], "none": None},
        "big": 2**40,
        "CC": ["elsewhere"],
        "x-death": [{"count": 1, "queue": "q"}],
    }
    with raw(rabbitmq_url) as channel:
        channel.basic_publish("", name, b"")
        channel.basic_publish(
            "", name, b"strange", pika.BasicProperties(headers=strange, timestamp=1_700_000_000, type="t", app_id="a", expiration="60000")
        )
    assert here.drain().counts == {"failed": 2, "done": 2}
    assert met[b""].properties == {"exchange": "", "routing_key": name}
    assert met[b""].id
    message = met[b"strange"]
    assert (message.headers["raw"], message.headers["big"], "CC" in message.headers) == (b"\xff\xfe", 2**40, False)
    assert (message.properties["timestamp"], message.properties["type"], message.properties["app_id"]) == (1_700_000_000, "t", "a")
    assert set(message.properties["headers"]) == {"when", "price", "table"}
    assert set(message.headers) == {"raw", "big"}
    assert here.entry("strange").enqueued_at == 1_700_000_000


def test_headers_that_pika_can_not_read_neither_end_the_connection_nor_get_lost(rabbitmq_url: str, here: Office, name: str) -> None:
    theirs = Queue(name=name)
    here.adapter.ensure([theirs])
    met: list[Message] = []

    @here.jobs.mapper(queue=name)
    def any_(message: Message) -> MappedJob:
        met.append(message)
        return MappedJob(type="ship", key=message.body.decode(), payload=None)

    @here.jobs.handler("ship", queue=theirs, backoff=SOON, max_attempts=2)
    def ship(_: Any, context: Context) -> None:
        if context.job.key == "odd":
            raise RuntimeError("through the outbox, and to the dead letters")

    milliseconds = b"T" + struct.pack(">Q", 1_700_000_000_000)  # of a producer that took them for seconds
    headers = {"date": milliseconds, "float": b"d" + struct.pack(">d", 1.5), "list": [milliseconds, 1], "text": "kept"}

    def raw_values(pieces: list[bytes], value: Any, plain: Any = pika.data.encode_value) -> int:
        if not isinstance(value, bytes):
            return int(plain(pieces, value))
        pieces.append(value)
        return len(value)

    with raw(rabbitmq_url) as channel, patch("pika.data.encode_value", raw_values):
        channel.basic_publish("", name, b"odd", pika.BasicProperties(headers=headers, content_type="a/b", correlation_id="c"))
        channel.basic_publish("", name, b"next")
    report = here.drain()
    assert (report.failed, report.counts["done"]) == (1, 1)
    odd = [message for message in met if message.body == b"odd"]
    assert odd[0].headers == odd[1].headers == {"date": 1_700_000_000_000, "text": "kept"}
    assert odd[0].properties["headers"] == {"float": 1.5, "list": [1_700_000_000_000, 1]}
    assert (odd[1].properties["content_type"], odd[1].properties["correlation_id"]) == ("a/b", "c")
    [letter] = dead(here, name)
    assert (letter.message.body, letter.message.headers["text"]) == (b"odd", "kept")


def test_a_foreign_queue_is_neither_ordered_nor_a_topic_on_rabbitmq_and_must_be_there(here: Office, name: str) -> None:
    for queue in (Queue(name=name, foreign=True, ordered=True), Queue(name=name, foreign=True, groups=("mail",))):
        with pytest.raises(ConfigurationError, match="a foreign queue is one queue, neither ordered nor with groups"):
            here.adapter.ensure([queue])
    for passive in (True, False):
        with pytest.raises(TopologyMismatch, match=f"queue '{name}': expected another program to have declared it, and it is not there"):
            here.adapter.ensure([Queue(name=name, foreign=True)], passive=passive)
