"""Dead letters on RabbitMQ: its own headers and limits, messages of other programs, and whoever dies in between."""

from __future__ import annotations

import datetime as dt
import decimal
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor

import pika
import pytest

from postroom.adapters import connect
from postroom.adapters.errors import ConfigurationError, TopologyMismatch, Unavailable
from postroom.adapters.rabbitmq.content import republished
from postroom.adapters.rabbitmq.letters import MAX_REASON
from postroom.adapters.seam import Message, Queue, Verdict
from support.rabbit import raw

PATIENCE = 30.0
STAMP = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
FOREIGN = pika.BasicProperties(
    content_type="application/x-yaml",
    content_encoding="utf-8",
    headers={"lang": "py", "retries": 3, "nested": {"a": [1, None]}, "when": STAMP, "price": decimal.Decimal("1.5"), "raw": b"\xff"},
    delivery_mode=1,
    priority=255,
    correlation_id="c-1",
    reply_to="answers",
    expiration="3600000",
    message_id="m-1",
    timestamp=1_700_000_000,
    type="tasks.mail",
    user_id="postroom",
    app_id="celery",
)


@pytest.fixture
def adapter(rabbitmq_url, opened):
    return opened(rabbitmq_url)


def publish(adapter, queue, *names, **options):
    outcomes = adapter.publish([Message(id=name, queue=queue, body=b"{}", **options) for name in names])
    assert {outcome.verdict for outcome in outcomes} == {Verdict.CONFIRMED}


def subscribe(adapter, queue):
    return adapter.consume({queue: 1}, group="tests", prefetch=50, name=f"worker-{uuid.uuid4().hex[:4]}")


def one(consumer):
    (delivery,) = consumer.receive(1, PATIENCE)
    return delivery


def bury(adapter, queue, *names, reason="no such address"):
    publish(adapter, queue, *names)
    consumer = subscribe(adapter, queue)
    for _ in names:
        consumer.dead_letter(one(consumer), reason)
    consumer.close()


def taken_raw(url, queue):
    """The oldest message of a queue, as it is on the broker."""
    with raw(url) as channel:
        _, properties, body = channel.basic_get(queue, auto_ack=True)
    return properties, body


def test_s125_a_count_that_the_broker_keeps_decides_nothing(rabbitmq_url, adapter, name):
    """Consume, publish again with the same headers, reject: what x-death says after five rounds differs by version. Nobody reads it."""
    adapter.ensure([Queue(name=name)])
    publish(adapter, name, "order-4711", headers={"tenant": "north"})
    with raw(rabbitmq_url) as channel:
        channel.confirm_delivery()
        for _ in range(5):
            method, properties, body = next(channel.consume(name, inactivity_timeout=PATIENCE))
            channel.basic_publish("", name, body, properties)
            channel.basic_reject(method.delivery_tag, requeue=False)
        channel.cancel()
    consumer = subscribe(adapter, name)
    delivery = one(consumer)
    assert (delivery.message.headers, delivery.message.id) == ({"tenant": "north"}, "order-4711")
    (outcome,) = adapter.publish([Message(id="copy", queue=name, body=b"{}", headers={"x-death": 7, "x-delivery-count": 9, "CC": "elsewhere"})])
    assert outcome.verdict is Verdict.CONFIRMED
    consumer.ack([delivery])
    assert one(consumer).message.headers == {}


def test_s127_no_copy_carries_the_brokers_counts(rabbitmq_url, adapter, name):
    adapter.ensure([Queue(name=name)])
    publish(adapter, name, "order-4711")
    consumer = subscribe(adapter, name)
    for _ in range(5):
        consumer.release([one(consumer)])
    worn = one(consumer)
    assert worn.attempts >= 1
    consumer.dead_letter(worn, "no such address")
    letters = adapter.dead_letters(name)
    for _ in range(3):  # looking counts as a delivery, too
        assert len(letters.list()) == 1
    (letter,) = letters.list()
    letters.put_back([letter.id], {letter.id: {"postroom-replays": 1}})
    again = one(consumer)
    assert (again.attempts, again.message.headers) == (0, {"postroom-replays": 1})


def test_s127_a_letter_that_another_tool_moved_back_starts_with_a_clean_budget(rabbitmq_url, adapter, name):
    adapter.ensure([Queue(name=name)])
    bury(adapter, name, "order-4711")
    with raw(rabbitmq_url) as channel:
        channel.confirm_delivery()
        method, properties, body = next(channel.consume(f"{name}.dlq", inactivity_timeout=PATIENCE))
        channel.basic_publish("", name, body, properties)  # as the management page's shovel does
        channel.basic_ack(method.delivery_tag)
        channel.cancel()
    again = one(subscribe(adapter, name))
    assert (again.message.id, again.message.headers, again.attempts) == ("order-4711", {}, 0)


def test_s128_a_missing_graveyard_is_an_error_and_the_job_stays_held(rabbitmq_url, adapter, name):
    adapter.ensure([Queue(name=name)])
    publish(adapter, name, "order-4711")
    consumer = subscribe(adapter, name)
    delivery = one(consumer)
    with raw(rabbitmq_url) as channel:
        channel.queue_delete(f"{name}.dlq")
    with pytest.raises(Unavailable, match=f"'{name}.dlq': no queue is bound"):
        consumer.dead_letter(delivery, "no such address")
    assert adapter.depth(name)["running"] == 1
    with pytest.raises(TopologyMismatch, match=f"'{name}.dlq': expected it to be declared, and it is not there"):
        adapter.ensure([Queue(name=name)], passive=True)
    with pytest.raises(ConfigurationError, match=f"{name}.dlq"):
        adapter.dead_letters(name).list()
    adapter.ensure([Queue(name=name)])
    consumer.dead_letter(delivery, "no such address")
    assert len(adapter.dead_letters(name).list()) == 1


def test_s128_what_the_broker_itself_gives_up_lies_with_the_dead_letters(rabbitmq_url, adapter, name):
    adapter.ensure([Queue(name=name)])
    publish(adapter, name, "order-4711", ordering_key="order-4711")
    with raw(rabbitmq_url) as channel:
        method, _, _ = next(channel.consume(name, inactivity_timeout=PATIENCE))
        channel.basic_reject(method.delivery_tag, requeue=False)
        channel.cancel()
    letters = adapter.dead_letters(name)
    while not (found := letters.list()):
        pass
    (letter,) = found
    assert (letter.message.id, letter.message.ordering_key, letter.reason) == ("order-4711", "order-4711", "given up by RabbitMQ: rejected")
    assert letter.died_at > 1_700_000_000
    assert letters.list() == found
    assert letters.put_back([letter.id]) == [letter.id]
    assert one(subscribe(adapter, name)).message.id == "order-4711"


def test_s131_however_often_it_fails_the_headers_stay_small(rabbitmq_url, adapter, name):
    adapter.ensure([Queue(name=name)])
    publish(adapter, name, "order-4711", headers={"tenant": "north"})
    consumer, letters = subscribe(adapter, name), adapter.dead_letters(name)
    for _ in range(20):
        consumer.dead_letter(one(consumer), "x" * 200_000)
        letters.put_back([letter.id for letter in letters.list()])
    consumer.dead_letter(one(consumer), "x" * 200_000)
    properties, _ = taken_raw(rabbitmq_url, f"{name}.dlq")
    assert MAX_REASON < len(b"".join(properties.encode())) < 8000


def test_s019_a_message_of_another_program_lies_there_with_all_its_properties(rabbitmq_url, adapter, name):
    adapter.ensure([Queue(name=name)])
    with raw(rabbitmq_url) as channel:
        channel.basic_publish("postroom", name, b"\xff not ours", FOREIGN)
    consumer = subscribe(adapter, name)
    delivery = one(consumer)
    assert (delivery.message.id, delivery.message.headers) == ("m-1", {"lang": "py", "retries": 3, "raw": b"\xff"})
    consumer.dead_letter(delivery, "not a job of ours")
    properties, body = taken_raw(rabbitmq_url, f"{name}.dlq")
    assert body == b"\xff not ours"
    kept = ("content_type", "content_encoding", "priority", "correlation_id", "reply_to", "message_id", "timestamp", "type", "user_id", "app_id")
    assert {field: getattr(properties, field) for field in kept} == {field: getattr(FOREIGN, field) for field in kept}
    assert FOREIGN.headers.items() <= properties.headers.items()
    assert (properties.expiration, properties.headers["postroom-rabbitmq-original-expiration"]) == (None, "3600000")
    assert properties.delivery_mode == 2


def test_s019_a_delay_or_a_name_that_the_broker_would_refuse_does_not_reach_it(rabbitmq_url, adapter, name):
    adapter.ensure([Queue(name=name)])
    with pytest.raises(ConfigurationError, match="native_delay"):
        adapter.publish([Message(id="1", queue=name, body=b"", delay=1000)])
    with raw(rabbitmq_url) as channel:
        channel.queue_declare(f"{name}-theirs", durable=True)
        channel.basic_publish("", f"{name}-theirs", b"", pika.BasicProperties(headers={"CC": [name]}))
    consumer = subscribe(adapter, name)
    consumer.dead_letter(one(consumer), "copied to us, and not for us")
    assert taken_raw(rabbitmq_url, f"{name}.dlq")[0].headers.get("CC") is None
    assert adapter.depth(name)["pending"] == 0


@pytest.mark.parametrize(("theirs", "kept"), [("postroom", "postroom"), ("somebody", None), (None, None)])
def test_a_copy_keeps_no_name_of_a_user_but_the_connections_own(theirs, kept):
    """RabbitMQ refuses any other, and the letter could never be written."""
    assert republished(pika.BasicProperties(user_id=theirs), {}, user="postroom").user_id == kept


def test_several_queues_may_share_a_graveyard_and_each_sees_its_own(adapter, name):
    adapter.ensure([Queue(name=name, dead_letter="graves"), Queue(name=f"{name}-2", dead_letter="graves")])
    bury(adapter, name, "1", "2")
    bury(adapter, f"{name}-2", "3")
    ours, theirs = adapter.dead_letters(name), adapter.dead_letters(f"{name}-2")
    assert [letter.message.id for letter in ours.list()] == ["1", "2"]
    ours.take([letter.id for letter in ours.list()])
    assert [letter.message.id for letter in theirs.list()] == ["3"]


def test_a_letter_of_an_ordered_queue_goes_back_to_its_partition(adapter, name):
    adapter.ensure([Queue(name=name, ordered=True)])
    consumer = subscribe(adapter, name)
    publish(adapter, name, "1", "2", ordering_key="order-4711")
    consumer.dead_letter(one(consumer), "no such address")
    letters = adapter.dead_letters(name)
    letters.put_back([letter.id for letter in letters.list()])
    received = [one(consumer)]
    consumer.ack(received)
    received.append(one(consumer))
    assert [delivery.message.id for delivery in received] == ["2", "1"]
    assert {delivery.message.ordering_key for delivery in received} == {"order-4711"}


def test_many_letters_are_read_in_pages_by_the_time_of_their_deaths(rabbitmq_url, adapter, name):
    adapter.ensure([Queue(name=name)])
    with raw(rabbitmq_url) as channel:
        for number in sorted(range(2500), key=lambda number: number * 7919 % 2500):
            headers = {"postroom-rabbitmq-letter": f"{number}.000000-00"}
            channel.basic_publish("", f"{name}.dlq", b"{}", pika.BasicProperties(message_id=f"{number}", headers=headers, delivery_mode=2))
    while adapter.depth(name)["failed"] < 2500:  # they were not confirmed
        pass
    letters = adapter.dead_letters(name)
    read, after = [], None
    while page := letters.list(100, after):
        read += [letter.message.id for letter in page]
        after = page[-1].id
    assert read == [f"{number}" for number in range(2500)]


def test_looking_at_some_does_not_put_them_behind_the_others(adapter, name):
    adapter.ensure([Queue(name=name)])
    bury(adapter, name, "1", "2", "3", "4")
    letters = adapter.dead_letters(name)
    first, second, *_ = letters.list()
    letters.put_back([second.id])
    assert [letter.message.id for letter in letters.list(1)] == ["1"]
    assert [letter.message.id for letter in letters.list()] == ["1", "3", "4"]
    letters.take([first.id])
    assert [letter.message.id for letter in adapter.dead_letters(name).list()] == ["3", "4"]


@pytest.mark.parametrize(
    "headers",
    [
        {"postroom-rabbitmq-letter": "nan-1", "postroom-rabbitmq-attempts": "many"},
        {"postroom-rabbitmq-letter": 7},
        {"x-death": "not a list"},
        {"x-death": [{"time": 5, "count": "many"}]},
        None,
    ],
)
def test_nothing_that_lies_there_keeps_the_rest_from_being_read(rabbitmq_url, adapter, name, headers):
    adapter.ensure([Queue(name=name)])
    with raw(rabbitmq_url) as channel:
        channel.confirm_delivery()
        channel.basic_publish("", f"{name}.dlq", b"odd", pika.BasicProperties(headers=headers, delivery_mode=2))
    bury(adapter, name, "order-4711")
    letters = adapter.dead_letters(name)
    odd, letter = letters.list()
    assert (odd.message.body, odd.attempts, letter.message.id) == (b"odd", 0, "order-4711")
    assert [taken.message.body for taken in letters.take([odd.id])] == [b"odd"]


def test_several_readers_at_once_each_see_all(rabbitmq_url, adapter, name):
    adapter.ensure([Queue(name=name)])
    bury(adapter, name, *(f"{number}" for number in range(5)))
    others = [connect(rabbitmq_url) for _ in range(2)]
    with ThreadPoolExecutor() as pool:
        lists = list(pool.map(lambda reader: [letter.message.id for letter in reader.dead_letters(name).list()], [adapter, adapter, *others] * 3))
    assert lists == [["0", "1", "2", "3", "4"]] * 12
    for other in others:
        other.close()


KILLED = """
import os, sys
from postroom.adapters import connect
from postroom.adapters.rabbitmq.reading import Reading
adapter = connect(sys.argv[1])
letters = adapter.dead_letters(sys.argv[2])
ids = [letter.id for letter in letters.list()]
Reading.remove = lambda *_: os._exit(9)  # after the confirm, before the ack
letters.put_back(ids[:1])
"""


def test_who_is_killed_while_putting_back_loses_nothing(rabbitmq_url, adapter, name):
    adapter.ensure([Queue(name=name)])
    bury(adapter, name, "1", "2")
    done = subprocess.run([sys.executable, "-c", KILLED, rabbitmq_url, name], check=False, timeout=60)
    assert done.returncode == 9
    assert one(subscribe(adapter, name)).message.id == "1"
    letters = adapter.dead_letters(name)
    assert [letter.message.id for letter in letters.list()] == ["1", "2"]
    assert len(letters.put_back([letter.id for letter in letters.list()])) == 2
    assert not letters.list()


def test_a_letter_that_can_not_be_put_back_stays(rabbitmq_url, adapter, name):
    adapter.ensure([Queue(name=name)])
    bury(adapter, name, "1")
    letters = adapter.dead_letters(name)
    (letter,) = letters.list()
    with raw(rabbitmq_url) as channel:
        channel.queue_delete(name)
    with pytest.raises(Unavailable, match="none of 1 could be put back"):
        letters.put_back([letter.id])
    assert letters.list() == [letter]
