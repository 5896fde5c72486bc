"""Workers on brokers that can't hold a job back: what has to wait waits in the database, whatever the broker itself can do."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from postroom.consumers import Backoff, Context, Retry
from postroom.consumers.ledger import Ledger
from postroom.consumers.ledger.tables import ledger
from postroom.consumers.worker.work import claim_of
from postroom.outbox.envelope import digest
from postroom.outbox.tables import outbox
from support.brokers import BROKERS
from support.inprocess import SOON, Office, effect, working
from support.workers import eventually
from support.works import work_of

NOTHING = {"pending": 0, "running": 0, "failed": 0}
HOUR = 3600.0
pytestmark = pytest.mark.parametrize("here", BROKERS, indirect=True)


def test_s021_a_job_that_always_fails_runs_by_its_backoff_and_the_one_behind_it_is_done_meanwhile(here: Office) -> None:
    runs: list[tuple[str, float]] = []

    @here.jobs.handler("t", queue=here.name, max_attempts=3, backoff=Backoff(first=1.0, factor=3.0, cap=3.0, jitter=0.0))
    def handle(payload: Any, context: Context) -> None:
        runs.append((context.job.key, time.monotonic()))
        if context.job.key == "bad":
            raise ValueError("the server is down")

    here.enqueue_all("bad", "good")
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

    here.enqueue_all("long", "short")
    with working(here.worker(concurrency=1)):
        eventually(lambda: ("short", 3) in runs)
        eventually(lambda: here.entry("short").status == "done")
        eventually(lambda: here.adapter.depth(here.name) == NOTHING)
    assert sorted(runs) == [("long", 1), ("short", 1), ("short", 2), ("short", 3)]
    assert (here.entry("long").status, here.entry("long").attempts) == ("pending", 1)


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
    here.dead_letter_office.replay()
    report = here.drain()
    assert (report.counts, report.failed) == ({"failed": 1, "done": 1}, 0)
    assert here.effects() == ["attempt 2"]
    assert (here.entry("k").status, here.entry("k").replays) == ("done", 1)
    assert here.letters() == {}
