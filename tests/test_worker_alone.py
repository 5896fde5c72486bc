"""A job that may have killed its process runs alone, and its neighbours don't wait for long."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from postroom.consumers.worker import alone as module
from postroom.consumers.worker.alone import Alone
from support.workers import eventually


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def in_background(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    said: list[object] = []
    thread = threading.Thread(target=lambda: said.append(work()), daemon=True)
    thread.start()
    return thread, said


def test_a_suspect_waits_until_the_others_have_left_and_keeps_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOM", 60.0)
    monkeypatch.setattr(module, "BOUND", 60.0)
    alone = Alone()
    alone.enter("lane 1")
    suspect, entered = in_background(lambda: alone.enter("lane 2", suspect=7))
    eventually(lambda: alone.claimed)
    other, went_in = in_background(lambda: alone.enter("lane 3"))
    suspect.join(0.05)
    assert suspect.is_alive()
    alone.leave("lane 1")
    suspect.join(60)
    assert entered == [True]
    other.join(0.05)
    assert other.is_alive()
    alone.leave("lane 2")
    other.join(60)
    assert went_in == [True]


def test_a_suspect_that_finds_no_room_in_time_is_refused_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOM", 0.05)
    alone = Alone()
    alone.enter("lane 1")
    assert not alone.enter("lane 2", suspect=7)
    assert not alone.claimed
    assert alone.enter("lane 3")


def test_beside_a_job_that_takes_long_already_a_suspect_does_not_hold_up_anybody() -> None:
    clock = Clock()
    alone = Alone(clock)
    alone.enter("lane 1")
    clock.time += 1.5
    assert not alone.enter("lane 2", suspect=7)


def test_a_suspect_that_was_refused_for_long_runs_beside_the_others() -> None:
    clock = Clock()
    alone = Alone(clock)
    alone.enter("lane 1")
    clock.time += 1.5
    assert not alone.enter("lane 2", suspect=7)
    clock.time += 29.0
    assert not alone.enter("lane 2", suspect=7)
    clock.time += 1.0
    assert alone.enter("lane 2", suspect=7)
    assert not alone.enter("lane 3", suspect=8)


def test_the_gate_opens_beside_a_suspect_that_has_not_crashed_for_a_while() -> None:
    clock = Clock()
    alone = Alone(clock)
    assert alone.enter("lane 1", suspect=7)
    assert (alone.claimed, alone.lasting) == (True, False)
    clock.time += 1.0
    assert (alone.claimed, alone.lasting) == (True, True)
    clock.time += 4.0
    assert (alone.claimed, alone.lasting) == (False, False)
    assert alone.wait()
    assert alone.enter("lane 2")


def test_a_lane_that_would_begin_jobs_is_told_when_it_can_not_run_them_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG", 0.05)
    alone = Alone()
    assert alone.enter("lane 1", suspect=7)
    assert not alone.wait()
    alone.leave("lane 1")
    assert alone.wait()
