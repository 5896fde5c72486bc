"""Lanes: the threads that run handlers. Each takes what waits, begins it in one round, and runs it job by job."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from postroom.consumers.ledger.answers import Done, Lost, Released

from .alone import AGAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.consumers.ledger.answers import Finish

    from .alone import Alone
    from .attempts import Attempts
    from .buffer import Buffer
    from .committer import Committer
    from .marks import Marks
    from .pace import Pace
    from .pipeline import Pipeline
    from .work import Running, Work

__all__ = ["Crew", "Desk", "Lane", "spare_lanes"]

_log = logging.getLogger("postroom.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What all lanes of a process share."""

    buffer: Buffer
    pace: Pace
    committer: Committer
    pipeline: Pipeline
    attempts: Attempts
    running: Running
    alone: Alone
    marks: Marks
    halted: threading.Event
    broken: threading.Event
    clock: Callable[[], float] = time.monotonic


class Lane:
    """One thread. `ready` is what it has begun and not run yet; others may take from it, from the end."""

    def __init__(self, number: int, desk: Desk) -> None:
        self.number = number
        self.ready: deque[Work] = deque()
        self.round_began: float | None = None
        self.retired = False
        self._desk = desk

    def run(self) -> None:
        """Hold rounds until the buffer is closed, or this lane is retired. The thread of this lane."""
        while not self.retired and (works := self._take()):
            if not self._desk.alone.wait():
                self._desk.pipeline.release(works, AGAIN)
                continue
            answers = self._desk.committer.begin(works)
            self.round_began = self._desk.clock()
            self.ready.extend(work for work, answer in zip(works, answers, strict=True) if self._desk.pipeline.answered(work, answer))
            self._run_round()
            self.round_began = None

    def hand_back(self) -> None:
        """Give back, uncharged, what this lane has begun and not run. Any thread may say so."""
        while self.ready:
            try:
                work = self.ready.pop()
            except IndexError:
                return
            self._desk.committer.hand_in(work, Released(started=work.attempt))

    def _take(self) -> list[Work]:
        """The works of the next round. The finishes of the last one ride along with it, or go by themselves when there is nothing to do."""
        desk = self._desk
        works = desk.buffer.take(wait=False)
        if not works:
            desk.committer.wake()
            works = desk.buffer.take(wait=True)
        return works

    def _run_round(self) -> None:
        place = 0
        while self.ready and not self.retired:
            suspect = self._next_suspect()
            if not self._desk.alone.enter(self, suspect=suspect):
                self._put_off()
                continue
            try:
                place = self._run_some(place, len(self.ready) if suspect is None else 1)
            finally:
                self._desk.alone.leave(self)

    def _next_suspect(self) -> int | None:
        """The name of the next job if it may have killed its process before."""
        try:
            attempt = self.ready[0].attempt
        except IndexError:  # handed back at this moment
            return None
        return attempt.id if attempt.solo else None

    def _put_off(self) -> None:
        """There is no room here for the next job, which must run alone."""
        with suppress(IndexError):
            work = self.ready.popleft()
            self._desk.committer.hand_in(work, Released(started=work.attempt, delay=AGAIN))
            self._desk.committer.wake()

    def _run_some(self, place: int, number: int) -> int:
        for _ in range(number):
            if self._desk.halted.is_set():
                self.hand_back()
            try:
                work = self.ready.popleft()
            except IndexError:
                break
            self._run_one(work, place)
            place += 1
            if self.retired:
                break
        return place

    def _run_one(self, work: Work, place: int) -> None:
        desk = self._desk
        if work.fenced:
            desk.pipeline.settled([(work, Done(started=work.attempt), Lost())])
            return
        began = desk.clock()
        work.unmark = partial(desk.marks.end, self.number, place)
        desk.marks.start(self.number, place, work.attempt.id, work.attempt.fence)
        work.deadline = work.handler.timeout and began + work.handler.timeout
        desk.running.add(work, self)
        finish, result = desk.attempts.run(work)
        if not desk.running.take(work):
            return  # somebody else has decided how it ended
        self._mark_end(finish, place)
        if result is None:
            desk.committer.hand_in(work, finish)
        else:
            desk.pipeline.settled([(work, finish, result)])
        desk.pace.measured(work.handler, desk.clock() - began)

    def _mark_end(self, finish: Finish, place: int) -> None:
        """A supervisor can store `done` for it, but not the jobs that it enqueued."""
        if isinstance(finish, Done) and not finish.outgoing:
            self._desk.marks.returned(self.number, place)
        else:
            self._desk.marks.end(self.number, place)


class Crew:
    """The lanes of a process. One that hangs in a handler whose time is up is replaced, once for each lane there is."""

    def __init__(self, size: int, desk: Desk) -> None:
        self._size = size
        self._desk = desk
        self._changing = threading.Lock()
        self._numbers = set(range(spare_lanes(size)))
        self._lanes: set[Lane] = set()
        self._threads: set[threading.Thread] = set()
        self.stuck = threading.Event()
        """Set when so many handlers hang that there is no lane left to replace another: only a new process helps."""

    def start(self) -> None:
        """Start as many lanes as were asked for."""
        with self._changing:
            for _ in range(self._size):
                self._start_one()

    @property
    def lanes(self) -> list[Lane]:
        """Those that are not retired."""
        return list(self._lanes)

    def replace(self, lane: Lane) -> None:
        """Another lane takes over: the handler in this one may never return. What it has begun and not run goes back."""
        lane.retired = True
        lane.hand_back()
        self._desk.alone.leave(lane)
        with self._changing:
            self._lanes.discard(lane)
            if self._numbers:
                self._start_one()
                return
        _log.error("%d handlers hang though their time is up: this process can go on no longer", self._size)
        self.stuck.set()

    @property
    def busy(self) -> bool:
        """Whether a lane that is not retired still works."""
        return bool(self._lanes)

    @property
    def hanging(self) -> int:
        """How many threads have not ended: after the stop, those that hang in handlers."""
        return len(self._threads)

    def _start_one(self) -> None:
        lane = Lane(self._numbers.pop(), self._desk)
        self._lanes.add(lane)
        thread = threading.Thread(target=self._serve, args=(lane,), name=f"postroom-lane-{lane.number}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _serve(self, lane: Lane) -> None:
        try:
            lane.run()
        except BaseException:  # noqa: BLE001 - whatever it is, it must be known
            _log.exception("%s broke down", threading.current_thread().name)
            self._desk.broken.set()
        finally:
            with self._changing:
                self._lanes.discard(lane)
                self._numbers.add(lane.number)
                self._threads.discard(threading.current_thread())


def spare_lanes(size: int) -> int:
    """How many lanes there may be at most, those that hang among them: so many the marks need room for."""
    return 2 * size
