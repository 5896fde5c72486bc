"""What becomes of a job is the same wherever its queue is."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from postroom.adapters.seam import Queue
from postroom.consumers import AsyncContext, Context, Fail
from postroom.outbox import Outbox
from support.brokers import EVERYWHERE
from support.inprocess import SOON, Office, effect, working
from support.workers import eventually

NOTHING = {"pending": 0, "running": 0, "failed": 0}
pytestmark = pytest.mark.parametrize("here", EVERYWHERE, indirect=True)


@dataclass
class Order:
    order_id: int


def test_a_job_is_done_once_with_its_payload_as_the_handler_wants_it_and_acked(here: Office) -> None:
    seen: list[Any] = []

    @here.jobs.handler("sync", queue=here.name)
    def sync(order: Order, context: Context) -> None:
        context.session.execute(effect(f"{context.job.key} {context.job.attempt}"))
        seen.append(order)

    @here.jobs.handler("async", queue=here.name)
    async def async_(order: Order, context: AsyncContext) -> None:
        await asyncio.sleep(0)
        seen.append((context.job.key, context.job.attempt, context.job.headers, context.idempotency_key))

    here.enqueue("sync", "order-1", {"order_id": 1})
    here.enqueue("async", "order-2", {"order_id": 2}, headers={"trace": "abc"})
    assert here.drain().counts == {"done": 2}
    assert here.drain().counts == {}
    assert Order(1) in seen
    assert ("order-2", 1, {"trace": "abc"}, "default:async:order-2") in seen
    assert (len(seen), here.effects()) == (2, ["order-1 1"])
    assert {here.entry(key).status for key in ("order-1", "order-2")} == {"done"}
    assert here.adapter.depth(here.name) == NOTHING


def test_s104_a_job_that_is_done_and_comes_again_is_acked_and_stays_as_it_is(here: Office) -> None:
    @here.jobs.handler("t", queue=here.name)
    def handle(payload: Any) -> None: ...

    here.publish_job("k")
    here.drain()
    before = here.entry("k")
    here.publish_job("k")
    here.publish_job("k", job_id="another-one")
    again = here.drain()
    assert again.counts == {"duplicates": 1 if here.adapter.capabilities.name == "sql" else 2}  # the table itself knows an id that it had
    assert here.entry("k") == before
    assert (here.letters(), again.failed) == ({}, 0)
    assert here.adapter.depth(here.name) == NOTHING


def test_s090_a_handler_that_fails_is_tried_again_and_its_key_is_not_used_up(here: Office) -> None:
    attempts: list[int] = []

    @here.jobs.handler("t", queue=here.name, backoff=SOON)
    def handle(payload: Any, context: Context) -> None:
        attempts.append(context.job.attempt)
        context.session.execute(effect(f"attempt {context.job.attempt}"))
        if context.job.attempt == 1:
            raise ValueError("not today")

    here.enqueue("t", "k")
    assert here.drain().counts == {"failed": 1, "done": 1}
    assert (attempts, here.effects()) == ([1, 2], ["attempt 2"])
    assert (here.entry("k").status, here.entry("k").attempts) == ("done", 1)


def test_s093_a_copy_that_arrives_while_the_first_runs_waits_and_is_acked_without_being_run(here: Office) -> None:
    running, go_on, runs = threading.Event(), threading.Event(), []

    @here.jobs.handler("t", queue=here.name)
    def handle(payload: Any) -> None:
        runs.append(1)
        running.set()
        assert go_on.wait(60)

    workers = [here.worker(), here.worker()]  # a share group gives who is busy nothing more
    with working(workers[0]), working(workers[1]):
        eventually(lambda: all(worker.ready() for worker in workers))
        here.enqueue("t", "k")
        assert running.wait(60)
        here.publish_job("k", job_id="twin")
        eventually(lambda: sum(worker.counts["deferred"] for worker in workers))
        assert not any(worker.counts["duplicates"] for worker in workers)
        go_on.set()
        eventually(lambda: any(worker.counts["duplicates"] for worker in workers))
    assert runs == [1]
    assert here.entry("k").status == "done"


def test_s132_a_job_that_fails_for_good_is_one_dead_letter_with_its_bytes_its_reason_and_the_ledgers_count(here: Office) -> None:
    @here.jobs.handler("t", queue=here.name, max_attempts=3, backoff=SOON)
    def handle(payload: Any, context: Context) -> None:
        raise Fail("no such customer") if context.job.key == "hopeless" else ValueError("never")

    job = here.enqueue("t", "k", {"order_id": 4711}, headers={"trace": "abc"})
    hopeless = here.enqueue("t", "hopeless")
    report = here.drain()
    found = here.letters()
    assert set(found) == {job, hopeless}
    assert (found[job].message.body, found[job].message.headers["trace"]) == (b'{"order_id":4711}', "abc")
    assert (found[job].reason, found[job].attempts) == ("given up after 3 attempts: ValueError: never", 3)
    assert (found[hopeless].reason, found[hopeless].attempts) == ("given up after 1 attempt: no such customer", 1)
    assert (here.entry("k").status, here.entry("k").attempts, here.entry("k").last_error) == ("failed", 3, "ValueError: never")
    assert report.failed == 2
    assert here.adapter.depth(here.name) == {**NOTHING, "failed": 2}


def test_s122_a_message_of_somebody_else_is_a_dead_letter_as_it_was(here: Office) -> None:
    bodies = [b"{}", b"hello", b"", bytes(range(256))]

    @here.jobs.handler("t", queue=here.name)
    def handle(payload: Any) -> None: ...

    for body in bodies:
        here.publish_raw(body, theirs="header")
    here.enqueue("t", "ours")
    here.drain()
    found = here.letters().values()
    assert sorted(letter.message.body for letter in found) == sorted(bodies)
    assert {letter.message.headers["theirs"] for letter in found} == {"header"}
    assert {letter.reason for letter in found} == {"no postroom-version header: the message was not published by Postroom"}
    assert [(entry.key, entry.status) for entry in here.entries()] == [("ours", "done")]


def test_s135_s140_a_payload_that_is_none_or_does_not_fit_is_a_dead_letter_between_good_jobs(here: Office) -> None:
    bodies = [b"\xff", b"", b"null", b"[" * 100_000, b"9" * 5000, b'{"a": NaN}', b'"\\ud800"', b'{"order_id": "x"}']
    done: list[int] = []

    @here.jobs.handler("t", queue=here.name)
    def handle(order: Order) -> None:
        done.append(order.order_id)

    for number, body in enumerate(bodies):
        here.publish_job(f"good-{number}", b'{"order_id": %d}' % number)
        here.publish_job(f"bad-{number}", body)
    here.drain()
    found = here.letters()
    assert {name: letter.message.body for name, letter in found.items()} == {f"id-of-bad-{number}": body for number, body in enumerate(bodies)}
    assert all("the payload does not fit Order" in letter.reason and letter.attempts == 1 for letter in found.values())
    assert sorted(done) == list(range(len(bodies)))
    assert {here.entry(f"bad-{number}").status for number in range(len(bodies))} == {"failed"}


def test_s115_a_stop_lets_handlers_end_and_hands_the_others_back_uncharged(here: Office) -> None:
    running, go_on, done = threading.Event(), threading.Event(), []

    @here.jobs.handler("t", queue=here.name)
    def handle(payload: Any, context: Context) -> None:
        running.set()
        assert go_on.wait(60)
        done.append(context.job.key)

    here.enqueue_all(*(f"k{number}" for number in range(6)))
    with working(here.worker(concurrency=1)) as shift:
        assert running.wait(60)
        eventually(lambda: here.adapter.depth(here.name)["pending"] + here.adapter.depth(here.name)["running"] == 6)
        shift.stop.ask()
        eventually(lambda: shift.worker.halted)
        go_on.set()
    assert len(done) == 1
    eventually(lambda: here.adapter.depth(here.name) == {**NOTHING, "pending": 5})
    assert all(entry.attempts == 0 for entry in here.entries())
    assert here.drain().counts["done"] == 5
    assert len(done) == 6


def test_s100_each_group_of_a_topic_does_the_work_of_a_key_once_and_a_retry_is_for_its_own_group(here: Office) -> None:
    done: list[tuple[str, int]] = []
    topic = Queue(name=here.name, groups=("emails", "stock"))

    @here.jobs.handler("paid", queue=topic, group="emails", backoff=SOON)
    def mail(payload: Any, context: Context) -> None:
        done.append(("emails", context.job.attempt))
        if context.job.attempt == 1:
            raise ValueError("once more")

    @here.jobs.handler("paid", queue=topic, group="stock")
    def stock(payload: Any, context: Context) -> None:
        done.append(("stock", context.job.attempt))

    with here.engine.begin() as connection:
        Outbox(queue=topic).enqueue(connection, "paid", {}, key="order-4711")
    assert here.drain().counts == {"failed": 1, "done": 2}
    assert sorted(done) == [("emails", 1), ("emails", 2), ("stock", 1)]


def test_jobs_of_each_priority_are_done_and_a_retry_keeps_its_own(here: Office) -> None:
    done: list[tuple[str, int]] = []
    queue = Queue(name=here.name, priorities={"high": 4, "low": 1})

    @here.jobs.handler("t", queue=queue, backoff=SOON)
    def handle(payload: Any, context: Context) -> None:
        done.append((context.job.queue, context.job.attempt))
        if context.job.attempt == 1:
            raise ValueError("once more")

    for priority in ("high", "low"):
        with here.engine.begin() as connection:
            Outbox(queue=queue).enqueue(connection, "t", {}, key=priority, priority=priority)
    here.drain()
    assert sorted(done) == [(f"{here.name}.{priority}", attempt) for priority in ("high", "low") for attempt in (1, 2)]
