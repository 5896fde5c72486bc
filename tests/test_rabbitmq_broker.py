"""The adapter on a real RabbitMQ: the network cut, the server killed, paused, out of memory, and other programs at work."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pika
import pytest

from postroom.adapters import connect
from postroom.adapters.errors import Closed, LeaseLost, Unavailable
from postroom.adapters.seam import Message, Queue, Verdict
from postroom.outbox.backoff import Backoff
from postroom.outbox.options import RelayOptions
from postroom.outbox.parked import Parked
from postroom.outbox.relay import Relay
from support.outboxes import enqueue, new_row, outbox_at
from support.rabbit import messages, publish_until_confirmed, raw, receive, subscribe, through, verdicts

PATIENCE = 30.0


@pytest.fixture
def adapter(rabbitmq_url, opened):
    return opened(rabbitmq_url)


def names(deliveries):
    return sorted((delivery.message.id for delivery in deliveries), key=int)


def test_jobs_run_oldest_first(adapter, name):
    adapter.ensure([Queue(name=name)])
    adapter.publish(messages(name, 200))
    consumer = subscribe(adapter, name)
    received = [delivery.message.id for _ in range(200) for delivery in receive(consumer, 1) if not consumer.ack([delivery])]
    assert received == [f"{number}" for number in range(200)]


def test_s007_two_threads_publish_on_one_adapter_and_all_is_confirmed(adapter, name):
    adapter.ensure([Queue(name=name)])
    with ThreadPoolExecutor() as pool:
        outcomes = list(pool.map(lambda message: adapter.publish([message])[0], messages(name, 400)))
    assert verdicts(outcomes) == [Verdict.CONFIRMED] * 400
    assert adapter.depth(name)["pending"] == 400


def test_s008_an_unroutable_message_is_not_taken_for_sent(rabbitmq_url, adapter, name):
    queue = Queue(name=name)
    adapter.ensure([queue])
    assert verdicts(adapter.publish(messages(name, 1))) == [Verdict.CONFIRMED]
    with raw(rabbitmq_url) as channel:
        channel.queue_unbind(name, "postroom", name)
    outcomes = adapter.publish(messages(name, 3))
    assert verdicts(outcomes) == [Verdict.BUSY] * 3
    assert outcomes[0].reason == f"queue {name!r} is not declared; run `postroom declare ...` or start its worker"
    adapter.ensure([queue])
    assert verdicts(adapter.publish(messages(name, 3))) == [Verdict.CONFIRMED] * 3


def test_a_queue_that_is_full_is_busy(rabbitmq_server, opened, name):
    adapter = opened(rabbitmq_server.url)
    adapter.ensure([Queue(name=name)])
    rabbitmq_server.ctl("set_policy", name, f"^{name}$", '{"max-length": 3}', "--apply-to", "queues")
    outcomes = [adapter.publish([message])[0] for message in messages(name, 20)]
    assert set(verdicts(outcomes)) == {Verdict.CONFIRMED, Verdict.BUSY}
    assert adapter.depth(name)["pending"] == verdicts(outcomes).count(Verdict.CONFIRMED)


def test_s011_a_body_above_the_servers_limit_is_refused_alone(rabbitmq_server, opened, name):
    rabbitmq_server.environment("max_message_size", "1024")
    try:
        adapter = opened(rabbitmq_server.url)
        adapter.ensure([Queue(name=name)])
        big = Message(id="big", queue=name, body=bytes(2048))
        batch = [*messages(name, 10), big, *messages(name, 20)[10:]]
        first = adapter.publish(batch)
        assert first[10].verdict is Verdict.REFUSED
        assert "1024" in first[10].reason
        rest = [message for message, outcome in zip(batch, first, strict=True) if outcome.verdict is Verdict.UNKNOWN]
        assert verdicts(adapter.publish([*rest, big])) == [Verdict.CONFIRMED] * len(rest) + [Verdict.REFUSED]
        received = receive(subscribe(adapter, name), adapter.depth(name)["pending"])
        assert {delivery.message.id for delivery in received} == {f"{number}" for number in range(20)}
    finally:
        rabbitmq_server.environment("max_message_size", "16777216")


def test_s011_a_row_above_the_servers_limit_is_parked_and_those_around_it_are_sent_in_their_order(rabbitmq_server, opened, name, tmp_path):
    rabbitmq_server.environment("max_message_size", "1024")
    try:
        adapter = opened(rabbitmq_server.url)
        adapter.ensure([Queue(name=name)])
        with outbox_at(f"sqlite:///{tmp_path}/postroom.db") as engine:
            enqueue(engine, *(new_row(f"{number}", queue=name, body=bytes(2048 if number == 10 else 2)) for number in range(21)))
            Relay(engine, adapter, options=RelayOptions(outage=Backoff(first=0.01, cap=0.1))).drain()
            (parked,) = Parked(engine).list()
        assert (parked.key, "1024" in parked.reason) == ("10", True)
        received = receive(subscribe(adapter, name), adapter.depth(name)["pending"])
        sent = dict.fromkeys(delivery.message.id for delivery in received)  # some perhaps twice: what had no answer is sent again
        assert [*sent] == [f"{number}" for number in range(21) if number != 10]
    finally:
        rabbitmq_server.environment("max_message_size", "16777216")


def test_s012_a_publish_into_a_dead_connection_is_unknown_and_the_next_one_arrives(rabbitmq_url, proxy, opened, name):
    adapter = opened(through(proxy, rabbitmq_url, "?confirm_timeout=0.5"))
    adapter.ensure([Queue(name=name)])
    first, second = messages(name, 2)
    publish_until_confirmed(adapter, [first])  # which may take a busy server longer than this timeout
    proxy.be_silent()
    assert verdicts(adapter.publish([second])) == [Verdict.UNKNOWN]
    proxy.speak()
    publish_until_confirmed(adapter, [second])
    consumer = subscribe(opened(rabbitmq_url), name)
    assert {delivery.message.id for delivery in receive(consumer, 2)} == {"0", "1"}


def test_s013_an_alarm_fails_publishes_at_once_and_all_go_out_once_when_it_is_over(rabbitmq_server, opened, name):
    adapter = opened(rabbitmq_server.url)
    adapter.ensure([Queue(name=name)])
    assert verdicts(adapter.publish([Message(id="before", queue=name, body=b"")])) == [Verdict.CONFIRMED]
    with rabbitmq_server.alarmed():
        outcomes = adapter.publish(messages(name, 10))
        assert verdicts(outcomes) == [Verdict.UNKNOWN] * 10
        assert "low on memory" in outcomes[0].reason
        assert verdicts(adapter.publish(messages(name, 10))) == [Verdict.UNKNOWN] * 10
        consumer = subscribe(adapter, name)
        consumer.ack(receive(consumer, 1))  # consuming goes on meanwhile
    publish_until_confirmed(adapter, messages(name, 10))
    assert names(receive(consumer, 10)) == [f"{number}" for number in range(10)]
    assert adapter.depth(name)["pending"] == 0


def test_s013_closing_takes_seconds_also_under_an_alarm(rabbitmq_server, name):
    adapter = connect(rabbitmq_server.url)
    adapter.ensure([Queue(name=name)])
    with rabbitmq_server.alarmed():
        adapter.publish(messages(name, 1))
        closing = threading.Thread(target=adapter.close)
        closing.start()
        closing.join(PATIENCE)
        assert not closing.is_alive()
    with pytest.raises(Closed):
        adapter.publish(messages(name, 1))


def test_s014_a_consumer_whose_queue_is_deleted_and_made_again_gets_its_jobs(rabbitmq_url, adapter, name):
    adapter.ensure([Queue(name=name)])
    consumer = subscribe(adapter, name)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(consumer.receive, 1, PATIENCE)
        wait_until(lambda: consumers_of(rabbitmq_url, name) == 1)
        with raw(rabbitmq_url) as channel:
            channel.queue_delete(name)
        with pytest.raises(Unavailable, match="cancelled"):
            waiting.result(PATIENCE)
    adapter.ensure([Queue(name=name)])
    adapter.publish(messages(name, 1))
    consumer.ack(receive(consumer, 1))


def test_a_deleted_queue_is_told_of_once_and_does_not_keep_others_from_being_served(rabbitmq_url, adapter, opened, name, caplog):
    other = opened(rabbitmq_url)
    other.ensure([Queue(name=name), Queue(name=f"{name}-2")])
    consumer = adapter.consume({name: 1, f"{name}-2": 1}, group="tests", prefetch=10, name="worker")
    assert not consumer.receive(1, 0)
    with raw(rabbitmq_url) as channel:
        channel.queue_delete(name)
    other.publish(messages(f"{name}-2", 3))
    consumer.ack(receive(consumer, 3))
    assert not consumer.receive(1, 2)
    told = f"queue '{name}' is not declared"
    assert (caplog.text.count(f"not subscribed: {told}"), [trouble.startswith(told) for trouble in consumer.troubles]) == (1, [True])
    other.ensure([Queue(name=name)])
    wait_until(lambda: not (consumer.receive(1, 0.1) or consumer.troubles))
    other.publish(messages(name, 1))
    consumer.ack(receive(consumer, 1))


def test_s015_a_consumer_is_not_deaf_after_its_connection_was_reset_three_times(rabbitmq_url, proxy, opened, name):
    adapter = opened(through(proxy, rabbitmq_url))
    adapter.ensure([Queue(name=name)])
    consumer = subscribe(adapter, name)
    for _ in range(3):
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(consumer.receive, 1, PATIENCE)
            wait_until(lambda: consumers_of(rabbitmq_url, name) == 1)
            proxy.cut()
            with pytest.raises(Unavailable):
                waiting.result(PATIENCE)
        wait_until(lambda: consumers_of(rabbitmq_url, name) == 0)  # or the next turn takes the old subscription for the new one
    opened(rabbitmq_url).publish(messages(name, 5))
    deliveries = receive(consumer, 5)
    consumer.ack(deliveries)
    assert names(deliveries) == [f"{number}" for number in range(5)]


def test_what_was_held_over_a_lost_connection_is_lost_and_comes_again(rabbitmq_url, proxy, opened, name):
    adapter = opened(through(proxy, rabbitmq_url))
    adapter.ensure([Queue(name=name)])
    adapter.publish(messages(name, 3))
    consumer = subscribe(adapter, name)
    held = receive(consumer, 3)
    proxy.cut()
    again = receive(consumer, 3)
    assert names(again) == names(held)
    with pytest.raises(LeaseLost) as lost:
        consumer.ack(held)
    assert len(lost.value.lost) == 3
    consumer.ack(again)


def test_s023_confirmed_jobs_outlive_the_server(rabbitmq_server, opened, name):
    adapter = opened(rabbitmq_server.url)
    adapter.ensure([Queue(name=name)])
    assert verdicts(adapter.publish(messages(name, 10))) == [Verdict.CONFIRMED] * 10
    consumer = subscribe(adapter, name)
    unacked = receive(consumer, 3)
    rabbitmq_server.kill()
    with pytest.raises(Unavailable):
        consumer.receive(1, PATIENCE)
    rabbitmq_server.start()
    deliveries = receive(consumer, 10)
    assert names(deliveries) == [f"{number}" for number in range(10)]
    with pytest.raises(LeaseLost):
        consumer.ack(unacked)
    consumer.ack(deliveries)
    assert verdicts(adapter.publish(messages(name, 1))) == [Verdict.CONFIRMED]


def test_heartbeats_go_on_whatever_the_handler_does(rabbitmq_url, opened, name):
    adapter = opened(f"{rabbitmq_url}?heartbeat=1")
    adapter.ensure([Queue(name=name)])
    adapter.publish(messages(name, 1))
    consumer = subscribe(adapter, name)
    (delivery,) = receive(consumer, 1)
    time.sleep(4)  # longer than the server waits for a heartbeat
    consumer.ack([delivery])
    assert not consumer.receive(1, 0.2)
    assert adapter.depth(name) == {"pending": 0, "running": 0, "failed": 0}


def test_a_server_that_stands_still_is_missed_and_found_again(rabbitmq_server, opened, name):
    adapter = opened(f"{rabbitmq_server.url}?heartbeat=1&confirm_timeout=2&stack_timeout=2")
    adapter.ensure([Queue(name=name)])
    consumer = subscribe(adapter, name)
    assert not consumer.receive(1, 0)
    with rabbitmq_server.paused():
        assert verdicts(adapter.publish(messages(name, 1))) == [Verdict.UNKNOWN]
        with pytest.raises(Unavailable):
            consumer.receive(1, PATIENCE)
    publish_until_confirmed(adapter, messages(name, 1))
    consumer.ack(receive(consumer, 1))


def test_connections_are_named_for_the_operator(rabbitmq_server, opened, name):
    adapter = opened(f"{rabbitmq_server.url}?connection_name=checkout")
    adapter.ensure([Queue(name=name)])
    adapter.publish(messages(name, 1))
    shown = rabbitmq_server.ctl("list_connections", "client_properties")
    assert "checkout publishing" in shown
    assert "checkout consuming" in shown


def test_a_connection_that_the_operator_closes_is_made_again(rabbitmq_server, opened, name):
    adapter = opened(rabbitmq_server.url)
    adapter.ensure([Queue(name=name)])
    adapter.publish(messages(name, 1))
    consumer = subscribe(adapter, name)
    receive(consumer, 1)
    rabbitmq_server.ctl("close_all_connections", "maintenance")
    consumer.ack(receive(consumer, 1))
    publish_until_confirmed(adapter, messages(name, 1))


FORKED = """
import os, sys
from postroom.adapters import Closed, Message, connect
adapter = connect(sys.argv[1])
publish = lambda name: adapter.publish([Message(id=name, queue=sys.argv[2], body=b"")])[0].verdict.value
consumer = adapter.consume({sys.argv[2]: 1}, group="tests", prefetch=1, name="parent")
consumer.receive(1, 0)
print(publish("parent"), flush=True)
if not os.fork():
    print(publish("child"), flush=True)
    try:
        consumer.receive(1, 0)
    except Closed:
        print("closed", flush=True)
    os._exit(0)
os.wait()
print(publish("parent again"), *(delivery.message.id for delivery in consumer.receive(1, 30)), flush=True)
adapter.close()
"""


def test_a_forked_child_has_connections_of_its_own_and_leaves_its_parents_alone(rabbitmq_url, adapter, name):
    adapter.ensure([Queue(name=name)])
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED, rabbitmq_url, name]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["confirmed", "confirmed", "closed", "confirmed", "parent"]


def test_what_a_worker_does_not_ask_for_is_left_to_others(rabbitmq_url, opened, name):
    one, two = opened(rabbitmq_url), opened(rabbitmq_url)
    one.ensure([Queue(name=name)])
    one.publish(messages(name, 20))
    busy, idle = subscribe(one, name, prefetch=1000), subscribe(two, name, prefetch=1000)
    receive(busy, 4)
    assert len(receive(idle, 16)) == 16


def test_several_workers_share_the_partitions_of_an_ordered_queue(rabbitmq_url, opened):
    if raw_version(rabbitmq_url) < (4, 0):
        pytest.skip("before RabbitMQ 4 whoever comes first has all partitions")
    queue, workers = "shared", ("ann", "bob", "cleo")  # of most names each has some of 8 partitions, of a tenth of them one has none
    with raw(rabbitmq_url) as channel:
        for number in range(8):  # of an earlier run on this server
            channel.queue_delete(f"{queue}#{number}")
    adapters = [opened(rabbitmq_url) for _ in workers]
    adapters[0].ensure([Queue(name=queue, ordered=True)])
    consumers = [adapter.consume({queue: 1}, group="tests", prefetch=50, name=worker) for adapter, worker in zip(adapters, workers, strict=True)]
    for consumer in consumers:
        assert not consumer.receive(1, 0)
    adapters[0].publish([Message(id=f"{number}", queue=queue, body=b"", ordering_key=f"key-{number}") for number in range(200)])
    shares = [len(consumer.receive(200, 5)) for consumer in consumers]
    assert min(shares) > 0


def consumers_of(url, queue):
    with raw(url) as channel:
        return channel.queue_declare(queue, passive=True).method.consumer_count


def raw_version(url):
    connection = pika.BlockingConnection(pika.URLParameters(url))
    version = connection._impl.server_properties["version"]  # noqa: SLF001 - pika tells it nowhere else
    connection.close()
    return tuple(int(part) for part in version.split(".")[:2])


def wait_until(holds):
    late = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < late
        time.sleep(0.05)
