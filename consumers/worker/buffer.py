"""What was received and not yet begun: between the receiver and the lanes."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from .gates import Gates

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .pace import Pace
    from .work import Work

__all__ = ["Buffer"]


class Buffer:
    """First in, first out, but for what waits before a gate. Thread-safe."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._changed = threading.Condition()
        self._waiting: deque[Work] = deque()
        self._first: deque[Work] = deque()
        self._gates = Gates()
        self.idle = 0
        """How many lanes wait for something to do."""
        self._closed = False

    def put(self, works: Sequence[Work]) -> None:
        """Add what was received, in order."""
        with self._changed:
            self._waiting.extend(works)
            self._changed.notify(len(works))

    def put_first(self, works: Iterable[Work]) -> None:
        """Add what comes before everything that waits: it was here before."""
        with self._changed:
            self._first.extend(works)
            self._changed.notify_all()

    def take(self, *, wait: bool) -> list[Work]:
        """Return the works of one round for one lane: with `wait` as soon as there is one. Nothing once it is closed."""
        with self._changed:
            while not self._closed:
                if works := self._pick():
                    return works
                if not wait:
                    break
                self.idle += 1
                self._changed.wait()
                self.idle -= 1
            return []

    def leave(self, work: Work) -> None:
        """`work`, taken before, is over: others may pass its gates."""
        if work.gates:
            with self._changed:
                self._first.extend(self._gates.leave(work))
                self._changed.notify_all()

    def drain(self) -> list[Work]:
        """Return what nobody took; nothing waits then."""
        with self._changed:
            left = [*self._first, *self._waiting, *self._gates.clear()]
            self._first.clear()
            self._waiting.clear()
            return left

    def close(self) -> list[Work]:
        """Give out no more; return what nobody took."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            return self.drain()

    def _pick(self) -> list[Work]:
        """As many as the handlers' measured times allow; not all while other lanes have nothing to do."""
        works: list[Work] = []
        share = -(-(len(self._first) + len(self._waiting)) // (self.idle + 1))
        seconds = 0.0
        while len(works) < share and (work := self._next()):
            seconds += self._pace.expect(work.handler)
            if works and (work.alone or not self._pace.allows(len(works) + 1, seconds)):
                self._first.appendleft(work)
                break
            if not work.gates or self._gates.enter(work):
                works.append(work)
            if work.alone:
                break
        return works

    def _next(self) -> Work | None:
        source = self._first or self._waiting
        return source.popleft() if source else None
