"""The time and the lanes that handlers have: deadlines, handlers that hang, and how many run at once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from postroom.consumers import AsyncContext, Context, Fail, Stop
from support.inprocess import SOON, Office, effect, working
from support.workers import eventually


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
