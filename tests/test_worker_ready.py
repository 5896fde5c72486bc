"""A worker is ready while it can read all of its queues, and tells once what keeps it from them."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from postroom.adapters.connect import connect
from postroom.adapters.errors import Unavailable
from postroom.adapters.memory import Memory
from postroom.adapters.memory.consumer import MemoryConsumer
from postroom.consumers import Backoff, Worker, WorkerSettings
from postroom.consumers.worker.marks import Marks
from support.inprocess import EAGER, Office, office, working
from support.workers import eventually


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
