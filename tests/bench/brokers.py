"""What the benchmarks of RabbitMQ and Kafka have in common: jobs to publish, the worker that does them, the relay that sends them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from relay import empty, fill
from sqlalchemy import Engine, text

from postroom.adapters.connect import connect
from postroom.adapters.seam import Adapter, Message, Queue, Verdict
from postroom.consumers import Jobs, Worker, WorkerSettings
from postroom.consumers.worker.stop import Stop
from postroom.outbox.envelope import Envelope
from postroom.outbox.relay import Relay

QUEUE = "bench"
TYPE = "no-op"
AT_ONCE = 500
GLANCE = 0.005


def message(number: int, queue: str = QUEUE, type_: str = TYPE) -> Message:
    """One as a relay would publish it."""
    key = f"order-{number}"
    envelope = Envelope(id=uuid4().hex, type=type_, key=key, ordering_key=key, queue=queue, enqueued_at=time.time())
    return Message(id=envelope.id, queue=queue, body=b'{"n":%d}' % number, headers=envelope.to_headers(), ordering_key=key)


def publish(adapter: Adapter, messages: Iterator[Message] | list[Message]) -> None:
    """Publish them, many at a time; all must be confirmed."""
    waiting = iter(messages)
    while part := [each for _, each in zip(range(AT_ONCE), waiting, strict=False)]:
        outcomes = adapter.publish(part)
        assert all(outcome.verdict is Verdict.CONFIRMED for outcome in outcomes), outcomes


def publish_rate(url: str, count: int) -> float:
    """The adapter alone: messages confirmed in a second."""
    with opened(url, QUEUE) as adapter:
        messages = [message(number) for number in range(count)]
        publish(adapter, messages[:1])  # connects
        began = time.perf_counter()
        publish(adapter, messages)
        return count / (time.perf_counter() - began)


def relay_rate(engine: Engine, url: str, rows: int) -> float:
    """From the outbox to the broker: rows marked as sent in a second."""
    empty(engine)
    fill(engine, rows)
    with opened(url, "emails") as adapter:
        publish(adapter, [message(0, "emails")])  # connects
        relay = Relay(engine, adapter)
        began = time.perf_counter()
        assert relay.drain().sent == rows
        return rows / (time.perf_counter() - began)


def jobs_rate(engine: Engine, url: str, count: int) -> float:
    """No-op jobs from the broker through one worker process with a ledger, from the first handler's start until the last `done` is stored."""
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE postroom_outbox, postroom_ledger"))
    queue = f"{QUEUE}-{uuid4().hex[:8]}"
    with opened(url, queue) as adapter:
        publish(adapter, (message(number, queue) for number in range(count)))
        jobs, began = _no_op(queue)
        worker, stop = Worker(jobs, engine, adapter, WorkerSettings(relay=None)), Stop()
        thread = threading.Thread(target=worker.run, args=(stop,))
        thread.start()
        while worker.counts["done"] < count:
            assert thread.is_alive(), "the worker has ended early"
            time.sleep(GLANCE)
        seconds = time.perf_counter() - began[0]
        stop.ask()
        thread.join()
    return count / seconds


@contextmanager
def opened(url: str, queue: str) -> Iterator[Adapter]:
    logging.getLogger("postroom").setLevel(logging.ERROR)
    adapter = connect(url)
    try:
        adapter.ensure([Queue(name=queue)])
        yield adapter
    finally:
        adapter.close()


def _no_op(queue: str) -> tuple[Jobs, list[float]]:
    """An application whose one handler does nothing, and when that was first called."""
    jobs, began = Jobs(), []

    @jobs.handler(TYPE, queue=queue)
    def no_op(_payload: dict[str, int]) -> None:
        if not began:
            began.append(time.perf_counter())

    return jobs, began
