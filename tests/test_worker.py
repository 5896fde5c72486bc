"""One worker in this process: what becomes of a job, on a queue that can hold jobs back and on a broker that can't."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text, update

from postroom.adapters.connect import connect
from postroom.adapters.errors import ConfigurationError, InvalidMessage, MissingExtra, Unavailable
from postroom.adapters.memory import Memory
from postroom.adapters.memory.consumer import MemoryConsumer
from postroom.adapters.seam import Queue
from postroom.consumers import AsyncContext, Backoff, Context, Fail, Retry, Stop, Worker, WorkerSettings
from postroom.consumers.ledger.tables import ledger
from postroom.consumers.worker.marks import Marks
from postroom.outbox import Outbox
from postroom.outbox.options import RelayOptions
from support.inprocess import EAGER, SOON, Office, effect, office, working
from support.workers import eventually


@pytest.fixture(params=["sql", "memory", "broker"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Office]:
    """The queues in the database itself, in memory, and on what stands for a broker: there only the outbox can hold a job back."""
    database = f"sqlite:///{tmp_path}/postroom.db"
    adapter = connect(database) if request.param == "sql" else Memory(native_delay=request.param == "memory")
    with office(database, adapter) as made:
        yield made


@dataclass
class Order:
    order_id: int


def test_a_job_is_done_once_with_its_payload_as_the_handler_wants_it(here: Office) -> None:
    seen: list[Any] = []

    @here.jobs.handler("sync", queue="q")
    def sync(order: Order) -> None:
        seen.append(order)

    @here.jobs.handler("async", queue="q")
    async def async_(order: Order, context: AsyncContext) -> None:
        await asyncio.sleep(0)
        seen.append((context.job.key, context.job.attempt, context.job.headers, context.idempotency_key))

    here.enqueue("sync", "order-1", {"order_id": 1})
    here.enqueue("async", "order-2", {"order_id": 2}, headers={"trace": "abc"})
    report = here.drain()
    assert Order(1) in seen
    assert ("order-2", 1, {"trace": "abc"}, "default:async:order-2") in seen
    assert report.counts == {"done": 2}
    assert {here.entry(key).status for key in ("order-1", "order-2")} == {"done"}
    assert here.adapter.depth("q") == {"pending": 0, "running": 0, "failed": 0}


def test_two_different_jobs_about_order_4711_send_one_email(here: Office) -> None:
    sent: list[str] = []

    @here.jobs.handler("send", queue="q")
    def send(payload: dict[str, Any], context: Context) -> None:
        sent.append(context.job.key)

    here.enqueue("send", "order-4711")
    here.drain()
    here.enqueue("send", "order-4711")
    assert here.drain().counts == {"duplicates": 1}
    assert sent == ["order-4711"]


def test_s090_a_handler_that_fails_is_tried_again_and_its_key_is_not_used_up(here: Office) -> None:
    attempts: list[int] = []

    @here.jobs.handler("t", queue="q", backoff=SOON)
    def handle(payload: Any, context: Context) -> None:
        attempts.append(context.job.attempt)
        if context.job.attempt == 1:
            raise ValueError("not today")

    here.enqueue("t", "k")
    report = here.drain()
    assert attempts == [1, 2]
    assert report.counts == {"failed": 1, "done": 1}
    assert (here.entry("k").status, here.entry("k").attempts) == ("done", 1)


def test_s132_a_job_that_fails_for_good_is_one_dead_letter_with_its_bytes_and_a_reason(here: Office) -> None:
    @here.jobs.handler("t", queue="q", max_attempts=3, backoff=SOON)
    def handle(payload: Any) -> None:
        raise ValueError("never")

    job = here.enqueue("t", "k", {"order_id": 4711})
    report = here.drain()
    [(message_id, letter)] = here.letters().items()
    assert (message_id, letter.message.body) == (job, b'{"order_id":4711}')
    assert (letter.reason, letter.attempts) == ("given up after 3 attempts: ValueError: never", 3)
    assert (here.entry("k").status, here.entry("k").attempts, here.entry("k").last_error) == ("failed", 3, "ValueError: never")
    assert report.failed == 1


def test_a_handler_can_give_up_or_choose_the_time_of_the_next_attempt(here: Office) -> None:
    attempts: list[tuple[str, int]] = []

    @here.jobs.handler("t", queue="q", backoff=Backoff(first=3600, cap=3600))
    def handle(payload: Any, context: Context) -> None:
        attempts.append((context.job.key, context.job.attempt))
        if context.job.key == "hopeless":
            raise Fail("the address does not exist")
        if context.job.attempt == 1:
            raise Retry("the server is busy", after=0.05)

    hopeless = here.enqueue("t", "hopeless")
    here.enqueue("t", "busy")
    here.drain()
    assert sorted(attempts) == [("busy", 1), ("busy", 2), ("hopeless", 1)]
    assert here.letters()[hopeless].reason == "given up after 1 attempt: the address does not exist"


@pytest.mark.parametrize("body", [b"{}", b"hello", b"", bytes(range(256))])
def test_s122_a_message_of_somebody_else_is_a_dead_letter_as_it_was(here: Office, body: bytes) -> None:
    done: list[str] = []

    @here.jobs.handler("t", queue="q")
    def handle(payload: Any, context: Context) -> None:
        done.append(context.job.key)

    here.publish_raw(body, theirs="header")
    here.enqueue("t", "ours")
    here.drain()
    [letter] = here.letters().values()
    assert (letter.message.body, letter.message.headers["theirs"]) == (body, "header")
    assert letter.reason == "no postroom-version header: the message was not published by Postroom"
    assert done == ["ours"]
    assert [entry.key for entry in here.entries()] == ["ours"]


@pytest.mark.parametrize("body", [b"\xff", b"", b"null", b"[" * 100_000, b"9" * 5000, b'{"a": NaN}', b'"\\ud800"', b'{"order_id": "x"}'])
def test_s135_s140_a_payload_that_is_none_or_does_not_fit_is_a_dead_letter_between_good_jobs(here: Office, body: bytes) -> None:
    done: list[int] = []

    @here.jobs.handler("t", queue="q")
    def handle(order: Order) -> None:
        done.append(order.order_id)

    here.publish_job("good-1", b'{"order_id": 1}')
    here.publish_job("bad", body)
    here.publish_job("good-2", b'{"order_id": 2}')
    here.drain()
    [letter] = here.letters().values()
    assert letter.message.body == body
    assert "the payload does not fit Order" in letter.reason
    assert sorted(done) == [1, 2]
    assert here.entry("bad").status == "failed"


def test_a_job_of_a_type_that_nobody_handles_is_a_dead_letter(here: Office) -> None:
    @here.jobs.handler("t", queue="q")
    def handle(payload: Any) -> None: ...

    job = here.enqueue("other", "k")
    assert here.drain().failed == 1
    assert here.letters()[job].reason == "given up after 1 attempt: no handler for type 'other' here; its queue is 'q'"


def test_the_same_key_with_another_payload_is_a_conflict_that_names_both(here: Office) -> None:
    @here.jobs.handler("t", queue="q")
    def handle(payload: Any) -> None: ...

    here.enqueue("t", "k", {"amount": 1})
    here.drain()
    before = here.entry("k")
    assert before.job_id
    job = here.enqueue("t", "k", {"amount": 2})
    here.drain()
    reason = here.letters()[job].reason
    assert "conflict" in reason
    assert before.digest in reason
    assert before.job_id in reason
    assert here.entry("k") == before


def test_s104_a_job_that_is_done_and_comes_again_is_acked_and_stays_as_it_is(here: Office) -> None:
    @here.jobs.handler("t", queue="q")
    def handle(payload: Any) -> None: ...

    here.publish_job("k")
    here.drain()
    before = here.entry("k")
    here.publish_job("k", job_id="another-one")
    again = here.drain()
    assert again.counts == {"duplicates": 1}
    assert here.entry("k") == before
    assert here.letters() == {}
    assert again.failed == 0
    assert here.adapter.depth("q") == {"pending": 0, "running": 0, "failed": 0}


def test_s093_a_copy_that_arrives_while_the_first_runs_waits_and_is_acked_without_being_run(here: Office) -> None:
    running, go_on, runs = threading.Event(), threading.Event(), []

    @here.jobs.handler("t", queue="q")
    def handle(payload: Any) -> None:
        runs.append(1)
        running.set()
        assert go_on.wait(60)

    with working(here.worker()) as shift:
        here.enqueue("t", "k")
        assert running.wait(60)
        here.enqueue("t", "k")
        eventually(lambda: shift.worker.counts["deferred"])
        assert shift.worker.counts["duplicates"] == 0
        go_on.set()
        eventually(lambda: shift.worker.counts["duplicates"])
    assert runs == [1]
    assert here.entry("k").status == "done"


def test_effects_outgoing_jobs_and_done_are_one_transaction(here: Office) -> None:
    @here.jobs.handler("parent", queue="q", backoff=SOON)
    def parent(payload: Any, context: Context) -> None:
        context.session.execute(effect(f"parent {context.job.attempt}"))
        context.enqueue("child", {"of": context.job.attempt}, key=f"child-{context.job.attempt}")
        if context.job.attempt == 1:
            raise ValueError("after the effect")

    @here.jobs.handler("child", queue="q")
    def child(payload: dict[str, int], context: Context) -> None:
        context.session.execute(effect(f"child of {payload['of']}"))

    here.enqueue("parent", "p")
    here.drain()
    assert here.effects() == ["parent 2", "child of 2"]


def test_a_job_enqueued_without_a_session_exists_if_and_only_if_the_attempt_is_done(here: Office) -> None:
    children: list[str] = []

    @here.jobs.handler("parent", queue="q", backoff=SOON)
    def parent(payload: Any, context: Context) -> None:
        context.enqueue("child", {}, key=f"child-{context.job.attempt}")
        if context.job.attempt == 1:
            raise ValueError("after the enqueue")

    @here.jobs.handler("child", queue="q")
    async def child(payload: Any, context: AsyncContext) -> None:
        children.append(context.job.key)

    here.enqueue("parent", "p")
    here.drain()
    assert children == ["child-2"]


def test_a_job_whose_queue_no_handler_tells_is_refused_when_it_is_enqueued(here: Office) -> None:
    told: list[str] = []

    @here.jobs.handler("parent", queue="q")
    def parent(payload: Any, context: Context) -> None:
        with pytest.raises(InvalidMessage) as refused:
            context.enqueue("unheard-of", {})
        told.append(str(refused.value))
        context.enqueue("unheard-of", {}, queue="elsewhere")

    here.enqueue("parent", "p")
    here.drain()
    assert told == ["type: 'unheard-of' has no handler here that would tell its queue; name one: enqueue(..., queue=...)"]
    assert here.entry("p").status == "done"


@pytest.mark.parametrize("module", ["aiosqlite", "greenlet"])
def test_without_the_async_extra_a_handler_that_asks_for_a_session_ends_the_worker_and_is_not_charged(
    here: Office, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    runs: list[str] = []

    @here.jobs.handler("t", queue="q")
    async def handle(payload: Any, context: AsyncContext) -> None:
        runs.append(context.job.key)
        await context.session.execute(effect("never"))

    @here.jobs.handler("without", queue="q")
    async def without(payload: Any, context: AsyncContext) -> None:
        runs.append(context.job.key)

    monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    here.enqueue("without", "fine")
    here.drain()
    here.enqueue("t", "k")
    with pytest.raises(MissingExtra) as missing:
        here.drain()
    assert str(missing.value) == f"an async handler's session needs {module}: pip install 'postroom[async]'"
    assert (here.entry("k").status, here.entry("k").attempts) == ("pending", 0)
    assert here.entry("fine").status == "done"
    assert {"fine", "k"} == set(runs)


def test_an_async_handlers_session_commits_with_done_or_not_at_all(here: Office) -> None:
    @here.jobs.handler("t", queue="q", backoff=SOON)
    async def handle(payload: Any, context: AsyncContext) -> None:
        await context.session.execute(effect(f"attempt {context.job.attempt}"))
        if context.job.attempt == 1:
            raise ValueError("after the effect")

    here.enqueue("t", "k")
    here.drain()
    assert here.effects() == ["attempt 2"]
    assert here.entry("k").status == "done"


@pytest.mark.parametrize("way", ["commit", "begin"])
def test_a_handler_can_not_commit_its_session_itself_but_may_use_savepoints(here: Office, way: str) -> None:
    @here.jobs.handler("t", queue="q", max_attempts=1)
    def handle(payload: Any, context: Context) -> None:
        with context.session.begin_nested():
            context.session.execute(effect("inside a savepoint"))
        if way == "commit":
            context.session.commit()
        context.session.get_transaction().commit()

    @here.jobs.handler("good", queue="q")
    def good(payload: Any, context: Context) -> None:
        with context.session.begin_nested():
            context.session.execute(effect("good"))

    here.enqueue("t", "k")
    here.enqueue("good", "g")
    here.drain()
    assert here.effects() == ["good"]
    assert here.entry("k").status == "failed"
    assert "the worker commits context.session" in here.entry("k").last_error


def test_a_failure_after_a_timeout_is_an_attempt_and_the_late_result_counts_for_nothing(here: Office) -> None:
    late, handled = threading.Event(), []

    @here.jobs.handler("t", queue="q", timeout=0.3, backoff=SOON)
    def handle(payload: Any, context: Context) -> None:
        if context.job.attempt == 1:
            assert context.deadline is not None
            assert late.wait(60)
            try:
                context.session.execute(effect("late"))
            finally:
                handled.append("late")
            return
        context.session.execute(effect("in time"))

    here.enqueue("t", "k")
    with working(here.worker(concurrency=1)):
        eventually(lambda: here.effects() == ["in time"])
        late.set()
        eventually(lambda: handled)
    assert here.effects() == ["in time"]
    assert (here.entry("k").status, here.entry("k").attempts, here.entry("k").last_error) == ("done", 1, "timed out after 0.3 s")


def test_when_as_many_handlers_hang_as_there_are_lanes_the_worker_ends_for_another_process_to_take_its_place(here: Office) -> None:
    go_on = threading.Event()

    @here.jobs.handler("t", queue="q", timeout=0.2, max_attempts=10, backoff=SOON)
    def handle(payload: Any) -> None:
        go_on.wait(60)

    here.enqueue("t", "k")
    report = here.worker(concurrency=1).run(Stop())
    go_on.set()
    assert report.hanging == 2
    assert (here.entry("k").status, here.entry("k").attempts) == ("pending", 2)


def test_an_async_handler_is_cancelled_at_its_deadline(here: Office) -> None:
    cancelled: list[int] = []

    @here.jobs.handler("t", queue="q", timeout=0.2, max_attempts=20, backoff=SOON)
    async def handle(payload: Any, context: AsyncContext) -> None:
        if len(cancelled) == 2:  # on a slow machine it is not always the first two attempts that come so far
            raise Fail("enough")
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(context.job.attempt)
            raise

    job = here.enqueue("t", "k")
    here.drain()
    assert len(cancelled) == 2
    assert here.letters()[job].reason.endswith(" attempts: enough")


def test_no_more_handlers_run_at_once_than_their_concurrency_allows(here: Office) -> None:
    inside, most, lock = [0], [0], threading.Lock()

    @here.jobs.handler("t", queue="q", concurrency=2)
    def handle(payload: Any) -> None:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        threading.Event().wait(0.005)
        with lock:
            inside[0] -= 1

    for number in range(30):
        here.enqueue("t", f"k{number}")
    assert here.drain(concurrency=6).counts == {"done": 30}
    assert most == [2]


def test_jobs_of_one_ordering_key_of_an_ordered_queue_are_done_in_order_also_after_a_failure(here: Office) -> None:
    done: list[str] = []
    ordered = Queue(name="q", ordered=True)

    @here.jobs.handler("t", queue=ordered, backoff=SOON)
    def handle(payload: Any, context: Context) -> None:
        if context.job.key == "a0" and context.job.attempt == 1:
            raise ValueError("the others of my key wait for me")
        done.append(context.job.key)

    outbox = Outbox(queue=ordered)
    for number in range(4):
        with here.engine.begin() as connection:
            for letter in "ab":
                outbox.enqueue(connection, "t", {}, key=f"{letter}{number}", ordering_key=letter)
    here.drain()
    assert [key for key in done if key.startswith("a")] == ["a0", "a1", "a2", "a3"]
    assert [key for key in done if key.startswith("b")] == ["b0", "b1", "b2", "b3"]


def test_a_drain_does_not_wait_for_what_only_an_operator_can_set_free(here: Office) -> None:
    ordered = Queue(name="q", ordered=True)

    @here.jobs.handler("t", queue=ordered, max_attempts=1)
    def handle(payload: Any, context: Context) -> None:
        if context.job.key == "a0":
            raise ValueError("no such address")

    outbox = Outbox(queue=ordered)
    for key in ("a0", "a1", "a2", "b0"):
        with here.engine.begin() as connection:
            outbox.enqueue(connection, "t", {}, key=key, ordering_key=key[0])
    report = here.drain()
    assert (report.counts["done"], report.failed) == (1, 1)
    assert (here.drain().counts["done"], here.entry("a0").status) == (0, "failed")


def test_s100_each_group_of_a_topic_does_the_work_of_a_key_once(here: Office) -> None:
    done: list[str] = []
    orders = Queue(name="orders", groups=("emails", "stock"))

    @here.jobs.handler("paid", queue=orders, group="emails")
    def mail(payload: Any) -> None:
        done.append("emails")

    @here.jobs.handler("paid", queue=orders, group="stock")
    def stock(payload: Any) -> None:
        done.append("stock")

    with here.engine.begin() as connection:
        Outbox(queue=orders).enqueue(connection, "paid", {}, key="order-4711")
    here.drain()
    assert sorted(done) == ["emails", "stock"]


def test_s137_an_error_with_a_nul_in_its_text_is_stored_and_dead_lettered(here: Office) -> None:
    @here.jobs.handler("t", queue="q", max_attempts=1)
    def handle(payload: Any) -> None:
        raise ValueError("a\x00b")

    job = here.enqueue("t", "k")
    here.drain()
    assert here.entry("k").status == "failed"
    assert "a\N{REPLACEMENT CHARACTER}b" in here.letters()[job].reason


def test_a_handler_that_exits_has_failed_and_its_lane_goes_on(here: Office) -> None:
    @here.jobs.handler("t", queue="q", max_attempts=1)
    def handle(payload: Any, context: Context) -> None:
        if context.job.key == "exit":
            raise SystemExit(3)

    here.enqueue("t", "exit")
    here.enqueue("t", "other")
    assert here.drain(concurrency=1).counts == {"dead": 1, "done": 1}


@pytest.mark.parametrize("first", ["stale attempt ends first", "new attempt ends first"])
def test_s107_an_attempt_that_was_taken_over_can_store_nothing(here: Office, first: str) -> None:
    running, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    @here.jobs.handler("t", queue="q")
    def handle(payload: Any, context: Context) -> None:
        running.set()
        assert go_on.wait(60)
        try:
            context.session.execute(effect("of the stale attempt"))
        finally:
            ended.set()

    taken_over = update(ledger).where(ledger.c.key == "k").values(fence=ledger.c.fence + 1, worker="another one")
    done_there = update(ledger).where(ledger.c.key == "k").values(status="done", lease_until=None, finished_at=1.0)
    with working(here.worker()):
        here.enqueue("t", "k")
        assert running.wait(60)
        with here.engine.begin() as connection:
            connection.execute(taken_over)
            if first == "new attempt ends first":
                connection.execute(done_there)
        go_on.set()
        assert ended.wait(60)
    assert here.effects() == []
    assert here.entry("k").worker == "another one"
    assert here.entry("k").status == ("running" if first == "stale attempt ends first" else "done")


def test_s107_an_attempt_whose_lease_is_lost_is_fenced_while_it_runs(here: Office) -> None:
    running, go_on, said = threading.Event(), threading.Event(), []

    @here.jobs.handler("t", queue="q")
    def handle(payload: Any, context: Context) -> None:
        running.set()
        assert go_on.wait(60)
        for use in (lambda: context.session, lambda: context.enqueue("t", {})):
            try:
                use()
            except Exception as error:  # noqa: BLE001 - whichever it is, is the answer
                said.append(type(error).__name__)

    with working(here.worker(lease=0.9)) as shift:
        here.enqueue("t", "k")
        assert running.wait(60)
        with here.engine.begin() as connection:
            connection.execute(update(ledger).where(ledger.c.key == "k").values(fence=ledger.c.fence + 1, lease_until=2**40))
        eventually(lambda: shift.worker.counts["lost"])
        go_on.set()
        eventually(lambda: len(said) == 2)
    assert said == ["LeaseLost", "LeaseLost"]


def test_s111_s114_a_job_of_a_worker_that_nobody_knows_any_more_is_taken_over_when_its_lease_has_run_out(here: Office) -> None:
    @here.jobs.handler("t", queue="q")
    def handle(payload: Any, context: Context) -> None:
        context.session.execute(effect(context.job.key))

    here.publish_job("orphan")
    here.drain()
    with here.engine.begin() as connection:
        connection.execute(effect("x").table.delete())
        stale = {"status": "running", "worker": "pruned long ago", "taken_at": 1.0, "lease_until": 2.0, "finished_at": None}
        connection.execute(update(ledger).values(**stale))
    here.publish_job("orphan", job_id="delivered-again")
    with working(here.worker()), working(here.worker()):
        eventually(lambda: here.entry("orphan").status == "done")
    assert here.effects() == ["orphan"]
    assert here.entry("orphan").attempts == 1


def test_s115_a_stop_lets_handlers_end_and_hands_the_others_back_uncharged(here: Office) -> None:
    running, go_on, done = threading.Event(), threading.Event(), []

    @here.jobs.handler("t", queue="q")
    def handle(payload: Any, context: Context) -> None:
        running.set()
        assert go_on.wait(60)
        done.append(context.job.key)

    for number in range(6):
        here.enqueue("t", f"k{number}")
    with working(here.worker(concurrency=1)) as shift:
        assert running.wait(60)
        eventually(lambda: sum(here.adapter.depth("q").values()) == 6)
        shift.stop.ask()
        eventually(lambda: shift.worker.halted)
        go_on.set()
    assert len(done) == 1
    assert here.adapter.depth("q") == {"pending": 5, "running": 0, "failed": 0}
    assert all(entry.attempts == 0 for entry in here.entries())
    assert here.drain().counts["done"] == 5


@pytest.mark.parametrize("how", ["the grace is over", "told to hurry"])
def test_s115_what_still_runs_when_the_worker_must_end_is_an_attempt_and_never_done(here: Office, how: str) -> None:
    running, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    @here.jobs.handler("t", queue="q", backoff=SOON)
    def handle(payload: Any, context: Context) -> None:
        if context.job.attempt == 1:
            running.set()
            assert go_on.wait(60)
            ended.set()
        else:
            context.session.execute(effect("second attempt"))

    here.enqueue("t", "k")
    with working(here.worker(grace=0.1 if how == "the grace is over" else 3600.0)) as shift:
        assert running.wait(60)
        shift.stop.ask()
        if how == "told to hurry":
            shift.stop.ask()
    assert shift.report is not None
    assert shift.report.hanging == 1
    assert (here.entry("k").status, here.entry("k").attempts) == ("pending", 1)
    assert here.entry("k").last_error.startswith("stopped: the worker ended")
    go_on.set()
    assert ended.wait(60)
    assert here.drain().counts["done"] == 1
    assert here.effects() == ["second attempt"]


def test_jobs_begun_ahead_of_a_job_that_suddenly_takes_long_go_to_others(here: Office) -> None:
    running, go_on, done = threading.Event(), threading.Event(), []

    @here.jobs.handler("t", queue="q")
    def handle(payload: dict[str, bool], context: Context) -> None:
        if payload.get("long"):
            running.set()
            assert go_on.wait(60)
        done.append(context.job.key)

    with working(here.worker(concurrency=1)) as shift:
        for number in range(100):
            here.enqueue("t", f"warm-up-{number}")
        eventually(lambda: len(done) == 100)
        with here.engine.begin() as connection:
            here.outbox.enqueue(connection, "t", {"long": True}, key="long")
            for number in range(20):
                here.outbox.enqueue(connection, "t", {}, key=f"behind-{number}")
        assert running.wait(60)
        with working(here.worker(concurrency=1)):
            eventually(lambda: len(done) == 120)
        go_on.set()
        eventually(lambda: "long" in done)
    assert shift.report is not None
    assert all((entry.status, entry.attempts) == ("done", 0) for entry in here.entries())


def test_quiet_waits_for_retries_but_not_for_what_its_sender_has_delayed(here: Office) -> None:
    attempts: list[str] = []

    @here.jobs.handler("t", queue="q", backoff=Backoff(first=1.0, cap=1.0, jitter=0.0))
    def handle(payload: Any, context: Context) -> None:
        attempts.append(context.job.key)
        if context.job.attempt == 1:
            raise ValueError("once more, later")

    here.enqueue("t", "now")
    here.enqueue("t", "tomorrow", delay=86400)
    assert here.drain().failed == 0
    assert attempts == ["now", "now"]


def test_a_worker_is_ready_when_it_has_polled_lately(here: Office) -> None:
    @here.jobs.handler("t", queue="q")
    def handle(payload: Any) -> None: ...

    worker = here.worker()
    assert not worker.ready()
    with working(worker):
        eventually(worker.ready)


def test_s014_a_worker_is_ready_while_all_of_its_queues_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    troubles: list[str] = []
    monkeypatch.setattr(MemoryConsumer, "troubles", property(lambda _: troubles))
    with office(f"sqlite:///{tmp_path}/postroom.db", Memory()) as here, ExitStack() as stack:
        here.jobs.handler("t", queue="q")(lambda _: None)
        shift = stack.enter_context(working(here.worker()))
        eventually(shift.worker.ready)
        troubles.append("queue 'q': it is gone")
        eventually(lambda: not shift.worker.ready())
        troubles.clear()
        eventually(shift.worker.ready)


def test_s015_a_worker_that_has_no_room_for_more_is_not_taken_for_deaf(here: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.consumers.worker.marks.DEAF", 1.0)
    began, end = threading.Event(), threading.Event()

    @here.jobs.handler("t", queue="q")
    def handle(payload: Any) -> None:
        began.set()
        end.wait(60)

    for number in range(2):
        here.enqueue("t", f"{number}")
    marks = Marks.in_memory(lanes=100, places=128)
    settings = WorkerSettings(relay=EAGER, concurrency=1, prefetch=1, look_ahead=1)
    worker = Worker(here.jobs, here.engine, here.adapter, settings, marks=marks)
    with working(worker):
        assert began.wait(60)
        at = marks.polled_at
        eventually(lambda: marks.polled_at > at + 1.0)
        assert worker.ready()
        end.set()


def test_s014_a_worker_whose_table_of_jobs_is_away_is_not_ready_until_it_is_back(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.consumers.worker.marks.DEAF", 1000.0)  # it is told, not missed
    with office(database_url, connect(database_url)) as here:
        here.jobs.handler("t", queue="q")(lambda _: None)
        with working(here.worker(relay=None)) as shift:
            eventually(shift.worker.ready)
            for before, after, ready in (("postroom_jobs", "postroom_gone", False), ("postroom_gone", "postroom_jobs", True)):
                with here.engine.begin() as connection:
                    connection.execute(text(f"ALTER TABLE {before} RENAME TO {after}"))
                eventually(lambda ready=ready: shift.worker.ready() is ready)


def test_s057_what_keeps_a_worker_from_receiving_is_told_once_however_often_it_tries(
    sqlite_database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = iter(["no such table", "no such table", "no such table", "the disk is full", "the disk is full"])
    receive = MemoryConsumer.receive

    def fail_at_first(consumer: MemoryConsumer, limit: int, timeout: float) -> Any:
        if why := next(tries, ""):
            raise Unavailable(why)
        return receive(consumer, limit, timeout)

    monkeypatch.setattr(MemoryConsumer, "receive", fail_at_first)
    monkeypatch.setattr("postroom.consumers.worker.receiver.OUTAGE", Backoff(first=0.001, cap=0.001))
    caplog.set_level(logging.INFO, "postroom.worker")
    with office(sqlite_database_url, Memory()) as here:
        here.jobs.handler("t", queue="q")(lambda _: None)
        here.enqueue("t", "after")
        assert here.drain().counts["done"] == 1
    said = [message for message in caplog.messages if "receiv" in message]
    assert said == [
        "can't receive, and goes on trying: no such table",
        "can't receive, and goes on trying: the disk is full",
        "receiving again after 5 failures",
    ]


def test_a_worker_may_work_on_some_of_its_queues_only(here: Office) -> None:
    done: list[str] = []
    for name in ("q", "other"):

        @here.jobs.handler(name, queue=name)
        def handle(payload: Any, context: Context) -> None:
            done.append(context.job.queue)

    here.adapter.ensure(list(here.jobs.queues.values()))
    here.enqueue("q", "1", queue="q")
    with here.engine.begin() as connection:
        Outbox(queue="other").enqueue(connection, "other", {}, key="2")
    here.drain(queues=("other",))
    assert done == ["other"]


def test_a_worker_without_handlers_is_refused(here: Office) -> None:
    with pytest.raises(ConfigurationError, match="no handler"):
        here.worker()


@pytest.mark.parametrize("settings", [{"lease": 1.0, "beat": 1.0}, {"lease": 30.0, "beat": 10.5}, {"lease": 0.0}, {"concurrency": 0}])
def test_s113_a_beat_that_is_slower_than_a_third_of_the_lease_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        WorkerSettings(**settings)  # type: ignore[arg-type]


def test_s113_a_beat_that_is_too_slow_for_the_lease_of_a_queue_is_refused_too(here: Office) -> None:
    @here.jobs.handler("t", queue=Queue(name="q", lease=3.0))
    def handle(payload: Any) -> None: ...

    with pytest.raises(ConfigurationError, match=r"beat 2.0 s is too slow for a lease of 3.0 s: at most a third of it, 1 s"):
        here.worker(lease=30.0, beat=2.0)


def test_s095_a_retention_shorter_than_the_longest_way_back_is_refused(here: Office) -> None:
    @here.jobs.handler("t", queue="q", max_attempts=11, backoff=Backoff(first=3600, factor=1, cap=3600))
    def handle(payload: Any) -> None: ...

    relay = RelayOptions(retention=60.0)
    with pytest.raises(ConfigurationError, match="36000 s"):
        here.worker(retention=35_999.0, relay=relay)
    with pytest.raises(ConfigurationError, match="604800 s"):
        here.worker(retention=36_000.0, relay=RelayOptions())
    here.worker(retention=36_000.0, relay=relay)


def test_the_whole_way_on_each_database(database_url: str) -> None:
    with office(database_url, connect(database_url)) as here:

        @here.jobs.handler("parent", queue="q", max_attempts=2, backoff=SOON)
        def parent(payload: dict[str, int], context: Context) -> None:
            context.session.execute(effect(context.job.key))
            context.enqueue("child", {}, key=f"child-{payload['n']}")
            if payload["n"] == 0 or (payload["n"] == 1 and context.job.attempt == 1):
                raise ValueError("after the effect")

        @here.jobs.handler("child", queue="q")
        def child(payload: Any, context: Context) -> None: ...

        for number in range(20):
            here.enqueue("parent", f"parent-{number}", {"n": number})
        report = here.drain()
        assert report.counts == {"done": 38, "failed": 2, "dead": 1}
        assert sorted(here.effects()) == sorted(f"parent-{number}" for number in range(1, 20))
        assert {entry.status for entry in here.entries() if entry.key != "parent-0"} == {"done"}
        assert len(here.letters()) == report.failed == 1
