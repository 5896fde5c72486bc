"""Who may run beside whom: a job with a crash in its history runs alone in its process, so that it can't use up its neighbours' attempts.

The rule, for a suspect (a job that may have killed its process):

- It waits for the others to leave, and no other begins meanwhile; for ROOM at most, and not at all beside a job that has run for longer already.
  Else it is handed back uncharged, to be tried again after AGAIN, here or by another process that has room.
- While it runs, nothing else in this process begins. From LONG on the process hands back what waits and receives no more: others go on.
- When it has run for BOUND without a crash, the gate opens: others may begin beside it. Should it crash its process now, it and they are suspects
  again, uncharged. So a process that is the only one stands still for BOUND at most.
- One that was handed back for STARVED, because its neighbours take long all the time, runs beside them, by the same reasoning.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["AGAIN", "Alone"]

ROOM = 1.0
LONG = 1.0
BOUND = 5.0
AGAIN = 2.0
STARVED = 30.0
"""All of these are seconds."""

_REMEMBERED = 1000


class Alone:
    """Lanes come and go together; a lane with a suspect keeps the others out, for a while. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._inside: dict[object, float] = {}
        self._solo: object | None = None
        self._since = 0.0
        self._until = 0.0
        self._refused: dict[Hashable, float] = {}

    def enter(self, lane: object, *, suspect: Hashable | None = None) -> bool:
        """Wait until `lane` may run jobs; with the name of a `suspect` until it is the only one. False when it can't be, soon.

        Blocks for BOUND and ROOM, for each suspect that comes before it.
        """
        with self._changed:
            self._pass(None)
            if suspect is not None and not self._make_room(lane, suspect):
                return False
            self._inside[lane] = self._clock()
            return True

    def leave(self, lane: object) -> None:
        """`lane` runs nothing any more. May be said for it, and twice."""
        with self._changed:
            self._inside.pop(lane, None)
            if self._solo is lane:
                self._open()
            self._changed.notify_all()

    def wait(self) -> bool:
        """Wait until no suspect runs or waits, for LONG at most: False when one still does, and jobs are better off with another process."""
        with self._changed:
            return self._pass(self._clock() + LONG)

    @property
    def claimed(self) -> bool:
        """Whether a suspect keeps the others out, or waits for them to leave."""
        return self._solo is not None and self._clock() < self._until

    @property
    def lasting(self) -> bool:
        """Whether one has done so for LONG."""
        return self.claimed and self._clock() - self._since >= LONG

    def _pass(self, deadline: float | None) -> bool:
        while self.claimed:
            left = (self._until if deadline is None else min(self._until, deadline)) - self._clock()
            if left <= 0 and self.claimed:
                return False
            self._changed.wait(max(left, 0))
        return True

    def _make_room(self, lane: object, suspect: Hashable) -> bool:
        """Keep the others out until `lane` leaves, or the time is up."""
        now = self._clock()
        if now - self._refused.get(suspect, now) >= STARVED:
            del self._refused[suspect]
            return True
        if all(now - began <= ROOM for began in self._inside.values()) and self._empty(lane):
            self._refused.pop(suspect, None)
            return True
        self._refused.setdefault(suspect, now)
        if len(self._refused) > _REMEMBERED:
            del self._refused[next(iter(self._refused))]
        return False

    def _empty(self, lane: object) -> bool:
        self._claim(lane, ROOM)
        if self._changed.wait_for(lambda: not self._inside, ROOM):
            self._claim(lane, BOUND)
            return True
        self._open()
        return False

    def _claim(self, lane: object, seconds: float) -> None:
        self._solo, self._since = lane, self._clock()
        self._until = self._since + seconds

    def _open(self) -> None:
        self._solo = None
        self._changed.notify_all()
