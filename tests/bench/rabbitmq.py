"""RabbitMQ: the relay, the worker and the adapter beside pika by itself, and beside the best-known worker."""

from __future__ import annotations

import functools
import importlib.util
import time
from collections.abc import Callable
from contextlib import closing
from uuid import uuid4

import pika
from brokers import jobs_rate, message, publish_rate, relay_rate
from pairs import LeftOut, Pair
from pika.channel import Channel
from relay import relay_rate as relay_rate_without
from sqlalchemy import Engine

from postroom.adapters.sql.schema import create

ROWS = 20_000
JOBS = 20_000
WINDOW = 2_000
"""How many messages are under way at a time."""
PREFETCH = 1_000
ACK_EVERY = 100
BLOCKING_ROWS = 2_000
QUORUM = {"x-queue-type": "quorum"}


def relay_and_pika(engine: Engine, url: str) -> Pair:
    create(engine)
    return Pair(
        name="relay to RabbitMQ / pika alone, pipelined",
        unit="rows/s",
        ours=lambda: relay_rate(engine, url, ROWS),
        plain=lambda: pipelined_rate(url, ROWS),
    )


def relay_and_none(engine: Engine, url: str) -> Pair:
    create(engine)
    return Pair(
        name="relay to RabbitMQ / to no broker",
        unit="rows/s",
        ours=lambda: relay_rate(engine, url, ROWS),
        plain=lambda: relay_rate_without(engine, ROWS),
    )


def publish_and_pika(url: str) -> Pair:
    return Pair(
        name="publish to RabbitMQ / pika alone, pipelined",
        unit="msgs/s",
        ours=lambda: publish_rate(url, ROWS),
        plain=lambda: pipelined_rate(url, ROWS),
    )


def jobs_and_pika(engine: Engine, url: str) -> Pair:
    create(engine)
    return Pair(
        name="no-op jobs, ledger, RabbitMQ / pika, no ledger",
        unit="jobs/s",
        ours=lambda: jobs_rate(engine, url, JOBS),
        plain=lambda: consumed_rate(url, JOBS),
    )


def jobs_and_dramatiq(engine: Engine, url: str) -> Pair:
    if importlib.util.find_spec("dramatiq") is None:
        raise LeftOut("jobs beside dramatiq: pip install dramatiq")
    create(engine)
    return Pair(
        name="no-op jobs, ledger, RabbitMQ / dramatiq, none",
        unit="jobs/s",
        ours=lambda: jobs_rate(engine, url, JOBS),
        plain=lambda: dramatiq_rate(url, JOBS),
    )


def report_blocking(url: str) -> None:
    """What pika's BlockingConnection comes to, which waits for each confirm: no yardstick, but what most programs do."""
    print(f"{'publish, pika BlockingConnection with confirms':<50} {blocking_rate(url, BLOCKING_ROWS):>10,.0f} msgs/s")


def pipelined_rate(url: str, count: int) -> float:
    """The quickest that pika can be made to publish: many under way, their confirms counted in ranges. Mandatory and persistent, as ours."""
    messages = _prepared(count)
    with closing(_Loop(url)) as loop:
        queue = loop.declare()
        sender = _Sender(loop, queue, messages)
        began = time.perf_counter()
        loop.run(sender.start)
        seconds = time.perf_counter() - began
        loop.delete(queue)
    return count / seconds


def consumed_rate(url: str, count: int) -> float:
    """The quickest that pika can be made to consume: no handler and no ledger, acks in ranges."""
    with closing(_Loop(url)) as loop:
        queue = loop.declare()
        loop.run(_Sender(loop, queue, _prepared(count)).start)
        taker = _Taker(loop, count)
        loop.run(lambda: taker.start(queue))
        loop.delete(queue)
    return count / (taker.ended - taker.began)


def blocking_rate(url: str, count: int) -> float:
    with closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        channel, queue = connection.channel(), f"bench-{uuid4().hex}"
        channel.queue_declare(queue, durable=True, arguments=QUORUM)
        channel.confirm_delivery()
        began = time.perf_counter()
        for body, properties in _prepared(count):
            channel.basic_publish("", queue, body, properties, mandatory=True)
        seconds = time.perf_counter() - began
        channel.queue_delete(queue)
    return count / seconds


def dramatiq_rate(url: str, count: int) -> float:
    """Dramatiq as it comes: no ledger, a classic queue without confirms, eight threads in one process as ours."""
    import dramatiq  # noqa: PLC0415 - only here
    from dramatiq.brokers.rabbitmq import RabbitmqBroker  # noqa: PLC0415

    broker = RabbitmqBroker(url=url)
    queue, times = f"bench-{uuid4().hex}", []
    actor = dramatiq.actor(lambda _payload: times.append(time.perf_counter()), actor_name="no-op", queue_name=queue, broker=broker)
    for number in range(count):
        actor.send({"n": number})
    worker = dramatiq.Worker(broker, worker_threads=8)
    worker.start()
    while len(times) < count:
        time.sleep(0.005)
    worker.stop()
    _delete(url, queue, f"{queue}.DQ", f"{queue}.XQ")
    broker.close()
    return count / (max(times) - min(times))


def _delete(url: str, *queues: str) -> None:
    with closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        for queue in queues:
            connection.channel().queue_delete(queue)


def _prepared(count: int) -> list[tuple[bytes, pika.BasicProperties]]:
    """The same bodies and headers as ours."""
    prepared = [message(number) for number in range(count)]
    return [(each.body, pika.BasicProperties(headers=dict(each.headers), message_id=each.id, delivery_mode=2)) for each in prepared]


class _Loop:
    """A SelectConnection with a channel in confirm mode, run in this thread by steps that end when they call `stop`."""

    def __init__(self, url: str) -> None:
        self.channel: Channel
        self._connection = pika.SelectConnection(pika.URLParameters(url), on_open_callback=self._opened)
        self._connection.ioloop.start()

    def run(self, step: Callable[[], object]) -> None:
        self._connection.ioloop.add_callback_threadsafe(step)
        self._connection.ioloop.start()

    def stop(self, *_: object) -> None:
        self._connection.ioloop.stop()

    def declare(self) -> str:
        queue = f"bench-{uuid4().hex}"
        self.run(functools.partial(self.channel.queue_declare, queue, durable=True, arguments=QUORUM, callback=self.stop))
        return queue

    def delete(self, queue: str) -> None:
        self.run(functools.partial(self.channel.queue_delete, queue, callback=self.stop))

    def close(self) -> None:
        self._connection.add_on_close_callback(self.stop)
        self.run(self._connection.close)

    def _opened(self, connection: pika.SelectConnection) -> None:
        connection.channel(on_open_callback=self._ready)

    def _ready(self, channel: Channel) -> None:
        self.channel = channel
        self.stop()


class _Sender:
    """Keeps WINDOW messages under way until all are confirmed."""

    def __init__(self, loop: _Loop, queue: str, messages: list[tuple[bytes, pika.BasicProperties]]) -> None:
        self._loop, self._queue, self._messages = loop, queue, messages
        self._sent = self._confirmed = 0
        self._single: set[int] = set()

    def start(self) -> None:
        self._loop.channel.confirm_delivery(self._answered, callback=lambda _: self._fill())

    def _fill(self) -> None:
        publish = self._loop.channel.basic_publish
        for body, properties in self._messages[self._sent : self._confirmed + WINDOW]:
            publish("", self._queue, body, properties, mandatory=True)
            self._sent += 1

    def _answered(self, frame: pika.frame.Method) -> None:
        assert isinstance(frame.method, pika.spec.Basic.Ack), frame
        self._note(frame.method.delivery_tag, several=frame.method.multiple)
        if self._confirmed == len(self._messages):
            self._loop.stop()
        elif self._sent - self._confirmed <= WINDOW // 2:
            self._fill()

    def _note(self, tag: int, *, several: bool) -> None:
        """Confirms come in ranges and one by one, in any order."""
        if several:
            self._confirmed = max(self._confirmed, tag)
            self._single = {other for other in self._single if other > tag}
        else:
            self._single.add(tag)
        while self._confirmed + 1 in self._single:
            self._confirmed += 1
            self._single.remove(self._confirmed)


class _Taker:
    """Takes `count` messages, and acks them in ranges."""

    def __init__(self, loop: _Loop, count: int) -> None:
        self._loop, self._count = loop, count
        self._taken = 0
        self.began = self.ended = 0.0

    def start(self, queue: str) -> None:
        self._loop.channel.basic_qos(prefetch_count=PREFETCH)
        self._loop.channel.basic_consume(queue, self._arrived)

    def _arrived(self, channel: Channel, method: pika.spec.Basic.Deliver, _: pika.BasicProperties, __: bytes) -> None:
        self.began = self.began or time.perf_counter()
        self._taken += 1
        if self._taken % ACK_EVERY == 0 or self._taken == self._count:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if self._taken == self._count:
            self.ended = time.perf_counter()
            self._loop.stop()
