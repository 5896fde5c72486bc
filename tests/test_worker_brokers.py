"""Workers on brokers that can't hold a job back: what becomes of a job is the same on each of them, whatever the broker itself can do."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from postroom.adapters.seam import Queue
from postroom.consumers import Backoff, Context, Fail, Retry
from postroom.consumers.dead import Selection, discarded, letters, places
from postroom.consumers.ledger import Ledger
from postroom.consumers.ledger.tables import ledger
from postroom.consumers.replay import Replay, mark
from postroom.consumers.status import status_of
from postroom.consumers.worker.work import claim_of
from postroom.outbox import Outbox
from postroom.outbox.envelope import digest
from postroom.outbox.tables import outbox
from support.brokers import BROKERS, ORDERED, connected_to
from support.inprocess import SOON, Office, effect, office, working
from support.workers import eventually
from support.works import work_of

NOTHING = {"pending": 0, "running": 0, "failed": 0}
HOUR = 3600.0


@pytest.fixture(params=BROKERS)
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Office]:
    """A queue of its own on each broker in turn; outbox and ledger on SQLite."""
    name = f"jobs-{uuid.uuid4().hex[:8]}"
    with connected_to(request.param, request.getfixturevalue) as adapter, office(f"sqlite:///{tmp_path}/postroom.db", adapter, name=name) as made:
        yield made


@dataclass
class Order:
    order_id: int


def enqueue_all(here: Office, *keys: str, **how: Any) -> list[str]:
    """Enqueue jobs in one transaction; return their ids."""
    with here.engine.begin() as connection:
        return [here.outbox.enqueue(connection, "t", {}, key=key, **how) for key in keys]


def replay_all(here: Office) -> None:
    """As `postroom dead replay --all` does."""
    book = Ledger(here.engine, worker="operator", lease=30.0, native_delay=False)
    Replay(here.engine, book).run(mark(here.engine, letters(places(here.engine, here.adapter, [here.name]), Selection())), progress=lambda _: None)


def test_a_job_is_done_once_and_acked(here: Office) -> None:
    @here.jobs.handler("t", queue=here.name)
    def handle(order: Order, context: Context) -> None:
        context.session.execute(effect(f"{context.job.key} {order.order_id} {context.job.attempt}"))

    here.enqueue("t", "order-1", {"order_id": 1}, headers={"trace": "abc"})
    assert here.drain().counts == {"done": 1}
    assert here.drain().counts == {}
    assert here.effects() == ["order-1 1 1"]
    assert here.adapter.depth(here.name) == NOTHING


def test_s021_a_job_that_always_fails_runs_by_its_backoff_and_the_one_behind_it_is_done_meanwhile(here: Office) -> None:
    runs: list[tuple[str, float]] = []

    @here.jobs.handler("t", queue=here.name, max_attempts=3, backoff=Backoff(first=1.0, factor=3.0, cap=3.0, jitter=0.0))
    def handle(payload: Any, context: Context) -> None:
        runs.append((context.job.key, time.monotonic()))
        if context.job.key == "bad":
            raise ValueError("the server is down")

    enqueue_all(here, "bad", "good")
    here.drain(concurrency=1)
    first, second, third = (at for key, at in runs if key == "bad")
    assert second - first >= 1.0
    assert third - second >= 3.0
    assert [key for key, _ in runs].index("good") < len(runs) - 1
    assert (here.entry("bad").status, here.entry("bad").attempts) == ("failed", 3)


def test_s130_of_two_retries_the_short_one_comes_back_first_and_its_second_cycle_is_not_lost(here: Office) -> None:
    runs: list[tuple[str, int]] = []

    @here.jobs.handler("t", queue=here.name)
    def handle(payload: Any, context: Context) -> None:
        runs.append((context.job.key, context.job.attempt))
        if context.job.key == "long":
            raise Retry("the server is down", after=HOUR)
        if context.job.attempt < 3:
            raise Retry("it is busy", after=0.5)

    enqueue_all(here, "long", "short")
    with working(here.worker(concurrency=1)):
        eventually(lambda: ("short", 3) in runs)
        eventually(lambda: here.entry("short").status == "done")
        eventually(lambda: here.adapter.depth(here.name) == NOTHING)
    assert sorted(runs) == [("long", 1), ("short", 1), ("short", 2), ("short", 3)]
    assert (here.entry("long").status, here.entry("long").attempts) == ("pending", 1)


def test_s104_a_job_that_is_done_and_comes_again_is_acked_and_stays_as_it_is(here: Office) -> None:
    @here.jobs.handler("t", queue=here.name)
    def handle(payload: Any) -> None: ...

    here.publish_job("k")
    here.drain()
    before = here.entry("k")
    here.publish_job("k")
    here.publish_job("k", job_id="another-one")
    again = here.drain()
    assert again.counts == {"duplicates": 2}
    assert here.entry("k") == before
    assert (here.letters(), again.failed) == ({}, 0)
    assert here.adapter.depth(here.name) == NOTHING


def test_s090_a_handler_that_fails_is_tried_again_and_its_key_is_not_used_up(here: Office) -> None:
    @here.jobs.handler("t", queue=here.name, backoff=SOON)
    def handle(payload: Any, context: Context) -> None:
        context.session.execute(effect(f"attempt {context.job.attempt}"))
        if context.job.attempt == 1:
            raise ValueError("not today")

    here.enqueue("t", "k")
    assert here.drain().counts == {"failed": 1, "done": 1}
    assert here.effects() == ["attempt 2"]
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


def test_s093_a_copy_of_a_job_whose_worker_has_died_is_deferred_and_takes_over_after_its_lease(here: Office) -> None:
    @here.jobs.handler("t", queue=here.name)
    def handle(payload: Any, context: Context) -> None:
        context.session.execute(effect(f"attempt {context.job.attempt}"))

    [handler] = here.jobs.handlers
    begun = replace(claim_of(work_of("k", handler)), digest=digest(b"{}"))
    Ledger(here.engine, worker="dead", lease=HOUR, native_delay=False).round([], [begun])
    here.publish_job("k")
    with working(here.worker()) as shift:
        eventually(lambda: shift.worker.counts["deferred"])
        with here.engine.begin() as connection:
            connection.execute(update(ledger).values(lease_until=ledger.c.lease_until - HOUR))
            connection.execute(update(outbox).values(available_at=outbox.c.available_at - HOUR))
        eventually(here.effects)
    assert here.effects() == ["attempt 2"]
    assert (here.entry("k").status, here.entry("k").last_error) == ("done", "lease expired")


def test_s118_a_delayed_job_waits_in_the_database_and_the_broker_holds_nothing(here: Office) -> None:
    @here.jobs.handler("t", queue=here.name)
    def handle(payload: Any, context: Context) -> None:
        context.session.execute(effect(context.job.key))

    here.enqueue("t", "later", delay=2 * HOUR)
    here.enqueue("t", "now")
    with working(here.worker()):
        eventually(lambda: here.effects() == ["now"])
        eventually(lambda: here.adapter.depth(here.name) == NOTHING)
        with here.engine.begin() as connection:
            connection.execute(update(outbox).where(outbox.c.key == "later").values(available_at=outbox.c.available_at - 2 * HOUR))
        eventually(lambda: len(here.effects()) == 2)
    assert here.effects() == ["now", "later"]


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


def test_s135_a_payload_that_is_none_or_does_not_fit_is_a_dead_letter_between_good_jobs(here: Office) -> None:
    bodies = [b"\xff", b"", b"null", b"[" * 100_000, b"9" * 5000, b'{"order_id": "x"}']
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


def test_s115_a_stop_lets_handlers_end_and_hands_the_others_back_uncharged(here: Office) -> None:
    running, go_on, done = threading.Event(), threading.Event(), []

    @here.jobs.handler("t", queue=here.name)
    def handle(payload: Any, context: Context) -> None:
        running.set()
        assert go_on.wait(60)
        done.append(context.job.key)

    enqueue_all(here, *(f"k{number}" for number in range(6)))
    with working(here.worker(concurrency=1)) as shift:
        assert running.wait(60)
        eventually(lambda: here.adapter.depth(here.name)["pending"] + here.adapter.depth(here.name)["running"] == 6)
        shift.stop.ask()
        eventually(lambda: shift.worker.halted)
        go_on.set()
    assert len(done) == 1
    assert all(entry.attempts == 0 for entry in here.entries())
    assert here.drain().counts["done"] == 5
    assert len(done) == 6


def test_each_group_of_a_topic_does_the_work_of_a_key_once_and_a_retry_is_for_its_own_group(here: Office) -> None:
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


def test_a_dead_letter_that_is_replayed_has_all_its_attempts_and_is_done(here: Office) -> None:
    mended = threading.Event()

    @here.jobs.handler("t", queue=here.name, max_attempts=2, backoff=SOON)
    def handle(payload: Any, context: Context) -> None:
        context.session.execute(effect(f"attempt {context.job.attempt}"))
        if not mended.is_set() or context.job.attempt == 1:
            raise ValueError("not mended")

    here.enqueue("t", "k")
    assert here.drain().failed == 1
    mended.set()
    replay_all(here)
    report = here.drain()
    assert (report.counts, report.failed) == ({"failed": 1, "done": 1}, 0)
    assert here.effects() == ["attempt 2"]
    assert (here.entry("k").status, here.entry("k").replays) == ("done", 1)
    assert here.letters() == {}


def ordered_jobs(here: Office, numbers: int, *ordering_keys: str) -> None:
    """Enqueue `numbers` jobs of each of these ordering keys, a0, a1 ..., in a transaction each."""
    queue = Outbox(queue=Queue(name=here.name, ordered=True))
    for number in range(numbers):
        with here.engine.begin() as connection:
            for key in ordering_keys:
                queue.enqueue(connection, "t", {}, key=f"{key}{number}", ordering_key=key)


@pytest.mark.parametrize("here", ORDERED, indirect=True)
def test_s056_the_jobs_of_an_ordering_key_are_done_in_order_over_retries_with_several_workers(here: Office) -> None:
    done: list[str] = []

    @here.jobs.handler("t", queue=Queue(name=here.name, ordered=True), backoff=SOON)
    def handle(payload: Any, context: Context) -> None:
        number = int(context.job.key[1:])
        if context.job.attempt <= number % 3:
            raise ValueError("the others of my key wait for me")
        done.append(context.job.key)

    ordered_jobs(here, 6, "a", "b", "c")
    with working(here.worker()), working(here.worker()):
        eventually(lambda: len(done) == 18)
    for key in "abc":
        assert [name for name in done if name.startswith(key)] == [f"{key}{number}" for number in range(6)]
    assert {entry.status for entry in here.entries()} == {"done"}


@pytest.mark.parametrize("here", ORDERED, indirect=True)
def test_a_drain_does_not_wait_for_what_only_an_operator_can_set_free(here: Office) -> None:
    @here.jobs.handler("t", queue=Queue(name=here.name, ordered=True), max_attempts=1)
    def handle(payload: Any, context: Context) -> None:
        if context.job.key == "a0":
            raise ValueError("no such address")

    ordered_jobs(here, 3, "a", "b")
    report = here.drain()
    assert (report.counts["done"], report.failed) == (3, 1)
    assert (here.drain().counts["done"], here.entry("a0").status) == (0, "failed")


@pytest.mark.parametrize("way", ["replayed", "discarded"])
@pytest.mark.parametrize("here", ORDERED, indirect=True)
def test_a_dead_letter_of_an_ordered_queue_holds_its_ordering_key_until_a_person_has_decided(here: Office, way: str) -> None:
    done: list[str] = []
    mended = threading.Event()

    @here.jobs.handler("t", queue=Queue(name=here.name, ordered=True), max_attempts=1)
    def handle(payload: Any, context: Context) -> None:
        if context.job.key == "a0" and not mended.is_set():
            raise ValueError("no such address")
        done.append(context.job.key)

    ordered_jobs(here, 3, "a", "b")
    with working(here.worker()) as shift:
        eventually(lambda: shift.worker.counts["dead"] and len(done) == 3)
        eventually(here.letters)
        eventually(lambda: shift.worker.counts["deferred"] == 2 or here.adapter.capabilities.name == "memory")
        assert done == ["b0", "b1", "b2"]
        if shift.worker.counts["deferred"]:
            [second] = status_of(here.engine, "a1")
            assert (second.status, second.place, second.behind) == ("pending", "outbox", here.entry("a0").job_id)
        mended.set()
        if way == "replayed":
            replay_all(here)
        else:
            list(discarded(here.engine, list(letters(places(here.engine, here.adapter, [here.name]), Selection())), "a typo"))
        eventually(lambda: "a2" in done)
    assert done[3:] == ["a0", "a1", "a2"][way == "discarded" :]
