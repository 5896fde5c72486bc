"""Looks after what runs: ends attempts whose time is up, and frees jobs that wait behind one that takes long."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from .failure import failed

if TYPE_CHECKING:
    import random

    from .lanes import Crew, Desk
    from .work import Work

__all__ = ["Watch", "cut_short"]

_log = logging.getLogger("postroom.worker")

TICK = 0.1
"""How exact (seconds) a timeout is."""

ROUND_LIMIT = 1.0
"""When a round lasts longer (seconds), what waits behind the job that runs is handed back."""


class Watch:
    """A thread of its own, because a handler that hangs can't look at the clock."""

    def __init__(self, desk: Desk, crew: Crew, rng: random.Random) -> None:
        self._desk = desk
        self._crew = crew
        self._rng = rng
        self._closed = threading.Event()

    def run(self) -> None:
        """Look around until closed. The thread of this object."""
        while not self._closed.wait(TICK):
            self._end_overdue()
            self._free_waiting()

    def close(self) -> None:
        """Let `run` return."""
        self._closed.set()

    def _end_overdue(self) -> None:
        now = self._desk.clock()
        for work, lane in self._desk.running.snapshot():
            overdue = work.deadline is not None and work.deadline <= now
            if overdue and cut_short(self._desk, work, f"timed out after {work.handler.timeout:g} s", rng=self._rng) and work.cancel is None:
                self._crew.replace(lane)

    def _free_waiting(self) -> None:
        """What waits behind a job that takes long goes back, for others to do; from the buffer too when no lane is left to take it."""
        desk, lanes = self._desk, self._crew.lanes
        long_ago = desk.clock() - ROUND_LIMIT
        late = [lane for lane in lanes if lane.round_began is not None and lane.round_began < long_ago]
        for lane in late:
            lane.hand_back()
        full = bool(late) and len(late) == len(lanes)
        if full:
            for work, _ in desk.running.snapshot():
                desk.pace.measured(work.handler, ROUND_LIMIT)
        if full or desk.alone.lasting:
            desk.pipeline.release(desk.buffer.drain())


def cut_short(desk: Desk, work: Work, error: str, *, rng: random.Random) -> bool:
    """Fail the attempt that runs, whatever its handler will say; False when it has just ended by itself.

    An async handler is cancelled. A sync one can't be: it goes on, but what it did in its session is rolled back, and its result counts for nothing.
    """
    if not desk.running.take(work):
        return False
    _log.warning("%s: attempt %d %s", work, work.attempt.attempt, error)
    work.overrule()
    desk.committer.hand_in(work, failed(work, error, delay=work.handler.backoff.delay(work.attempt.attempt, rng)))
    desk.committer.wake()
    return True
