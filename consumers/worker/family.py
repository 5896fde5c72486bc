"""The children of a supervisor: as many as were asked for, the dead replaced, until it is time to end."""

from __future__ import annotations

import logging
import math
import random
import signal
import time
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from postroom.adapters.errors import ConfigurationError, MissingExtra, Unavailable
from postroom.outbox.backoff import Backoff

from .config import REFUSED, UNEQUIPPED, UNREACHABLE
from .foreground import Signalled

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.adapters.errors import PostroomError

    from .process import Child

__all__ = ["Family"]

_log = logging.getLogger("postroom.supervisor")

RESTART = Backoff(first=0.1, cap=10.0, jitter=0.2)
"""Before a child takes the place of one that died young."""

YOUNG = 10.0
"""A child that lived longer (seconds) is replaced without waiting."""

START_TRIES = 5
"""So many children in a row that ended before they were ready, and none that is: more of them would help nobody."""

MARGIN = 20.0
"""How much longer than its grace (seconds) a child may take to end before it is killed."""


@dataclass(slots=True)
class _Place:
    """Where one child lives, how many in a row died young there, how many of them were never ready, and when the next may start."""

    child: Child | None = None
    failures: int = 0
    false_starts: int = 0
    start_at: float = 0.0


class Family:
    """`give_birth` starts a child that will report its end to the function it is given. One thread uses this object, but for `notice`."""

    def __init__(
        self, size: int, give_birth: Callable[[Callable[[Child], object]], Child], *, grace: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._give_birth = give_birth
        self._grace = grace
        self._clock = clock
        self._places = [_Place() for _ in range(size)]
        self._events: SimpleQueue[Signalled | Child] = SimpleQueue()
        self._rng = random.Random()  # noqa: S311 - to spread restarts
        self._dead: list[Child] = []
        self._kill_at = math.inf
        self.ending = False
        """Whether the children were told to end: the dead are not replaced then."""
        self.worked = False
        """Whether there has ever been a child that was ready."""
        self.fault: PostroomError | None = None
        """Why no child can be expected to work, once that is known."""

    @property
    def children(self) -> list[Child]:
        """Those that live, as far as is known."""
        return [place.child for place in self._places if place.child]

    @property
    def complete(self) -> bool:
        """Whether every place is taken."""
        return all(place.child for place in self._places)

    def notice(self, event: Signalled | Child) -> None:
        """Something has happened. Safe in a signal handler and in any thread."""
        self._events.put(event)

    def tend(self, timeout: float) -> Signalled | None:
        """Start children that are due, kill those that are too late, and wait up to `timeout` seconds for something to happen; return a signal."""
        now = self._clock()
        self.worked = self.worked or any(child.ready for child in self.children)
        for place in self._places:
            if place.child is None and not self.ending and place.start_at <= now:
                place.child = self._give_birth(self.notice)
                place.start_at = now
        if now > self._kill_at:
            self._each(signal.SIGKILL)
        try:
            event = self._events.get(timeout=timeout)
        except Empty:
            return None
        if isinstance(event, Signalled):
            return event
        self._bereaved(event)
        return None

    def end(self) -> None:
        """Ask the children to drain; the second time, to hurry. Those that don't end are killed by a later `tend`."""
        patience = MARGIN if self.ending else self._grace + MARGIN
        self.ending = True
        self._kill_at = self._clock() + patience
        self._each(signal.SIGTERM)

    def bury(self) -> None:
        """Wait, for a while, until the leases of all the dead are given up."""
        for child in self._dead:
            child.buried.wait(MARGIN)

    def _each(self, number: int) -> None:
        for child in self.children:
            child.signal(number)

    def _bereaved(self, child: Child) -> None:
        """A child has died: its place is free, after a while if it died young."""
        self._dead = [*(dead for dead in self._dead if not dead.buried.is_set()), child]
        place = next(place for place in self._places if place.child is child)
        now = self._clock()
        place.failures = place.failures + 1 if now - place.start_at < YOUNG else 0
        place.child, place.start_at = None, now + (RESTART.delay(place.failures, self._rng) if place.failures else 0.0)
        self.worked = self.worked or child.ready
        waited = self.worked and child.exit_code == UNREACHABLE  # an outage that came after the first of them is waited for
        place.false_starts = 0 if child.ready or waited else place.false_starts + 1
        self.fault = self.fault or (None if self.ending else self._fault(child, place.false_starts))
        log = _log.info if self.ending and _as_told(child) else _log.warning
        log("child %d ended with %s", child.pid, child.ending)

    def _fault(self, child: Child, false_starts: int) -> PostroomError | None:
        """What the end of this child says of all others."""
        if child.exit_code == UNEQUIPPED:
            return MissingExtra("a handler needs a library that is not installed here; the log of its process says which")
        if child.exit_code == REFUSED and not child.ready:
            return ConfigurationError("a worker process can't work with this configuration; its log says why")
        if false_starts < START_TRIES or any(other.ready for other in self.children):
            return None
        return Unavailable(f"no worker process can start: {false_starts} in a row ended before they were ready, the last with {child.ending}")


def _as_told(child: Child) -> bool:
    """Whether a child that was asked to end has ended by that: in good order, or before it could listen to signals."""
    return child.exit_code == 0 or (child.exit_code == -signal.SIGTERM and not child.ready)
