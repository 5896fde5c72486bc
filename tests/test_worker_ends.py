"""How a worker ends: asked to, in time or not, and when all is quiet."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from postroom.consumers import Backoff, Context
from support.inprocess import SOON, Office, effect, working


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
