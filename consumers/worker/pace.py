"""How far a lane looks ahead: as many jobs as their handlers are likely to do in one short round."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postroom.consumers.jobs import Handler

__all__ = ["Pace"]

WEIGHT = 0.25
"""How much the newest measurement counts."""

SLOW = 0.5
"""From this time (seconds) on a job that waits behind another is better off with another worker."""


class Pace:
    """The measured time of each handler, in seconds. A handler that nobody has measured is taken for one that fills a round.

    Lanes write it without a lock: a measurement that gets lost does no harm.
    """

    def __init__(self, *, budget: float, most: int) -> None:
        self._budget = budget
        self._most = most
        self._seconds: dict[Handler, float] = {}
        self._newest = budget

    def expect(self, handler: Handler) -> float:
        """How long one job of `handler` will probably take."""
        return self._seconds.get(handler, self._budget)

    def measured(self, handler: Handler, seconds: float) -> None:
        """One job of `handler` took `seconds`."""
        before = self._seconds.get(handler, self._budget)
        self._seconds[handler] = self._newest = before + WEIGHT * (seconds - before)

    def allows(self, jobs: int, seconds: float) -> bool:
        """Whether a round may have so many jobs that will probably take `seconds` together."""
        return jobs <= self._most and seconds <= self._budget

    @property
    def appetite(self) -> int:
        """How many deliveries one lane can use: those of its round, and those of the next unless jobs are slow."""
        if self._newest >= SLOW:
            return 1
        return 2 * max(1, min(self._most, int(self._budget / max(self._newest, 1e-9))))
