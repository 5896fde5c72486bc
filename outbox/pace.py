"""How fast a relay goes: at once while there is more, slower and slower while there is nothing, and in growing steps while nobody answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

    from .marks import RoundResult
    from .options import RelayOptions

__all__ = ["Pace"]


class Pace:
    """The pauses of one relay, in seconds."""

    def __init__(self, options: RelayOptions, rng: random.Random) -> None:
        self._options = options
        self._rng = rng
        self._poll = options.poll_min
        self.failures = 0

    def after(self, result: RoundResult) -> float:
        """The pause after a round. One that sent something is no failure in a row, even if some rows got no answer."""
        if result.worked:
            self.failures = 0
        if result.outage:
            return self.failed()
        self.failures = 0
        if result.more and result.worked:
            self._poll = self._options.poll_min
            return 0.0
        return self._idle(busy=result.worked)

    def failed(self) -> float:
        """The pause after a round in which the database or the broker gave no answer."""
        self.failures += 1
        return self._options.outage.delay(self.failures, self._rng)

    def _idle(self, *, busy: bool) -> float:
        poll = self._options.poll_min if busy else self._poll
        self._poll = min(poll * 2, self._options.poll_max)
        return poll
