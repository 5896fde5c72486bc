"""A job that is taken over: its stale attempt can store nothing, and nobody has to know its worker."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import update

from postroom.consumers import Context
from postroom.consumers.ledger.tables import ledger
from support.inprocess import Office, effect, working
from support.workers import eventually


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
