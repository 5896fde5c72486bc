"""How long to wait before trying again: exponential, capped, spread at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from postroom.adapters.errors import ConfigurationError
from postroom.adapters.numbers import flaw, flaws

if TYPE_CHECKING:
    import random

__all__ = ["Backoff"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waiting times that grow, so that what failed together does not return together.

    `first` and `cap` are seconds; the wait after failure n is `first * factor ** (n - 1)`, at most `cap`, and the fraction `jitter` of it is
    left to chance.
    """

    first: float = 1.0
    factor: float = 2.0
    cap: float = 300.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        """Raise ConfigurationError for numbers that make no sense."""
        if wrong := flaws(*(flaw(name, getattr(self, name)) for name in ("first", "factor", "cap", "jitter"))):
            raise ConfigurationError(f"{type(self).__name__}: {wrong}")
        if not (0 <= self.first <= self.cap and self.factor >= 1 and 0 <= self.jitter <= 1):
            raise ConfigurationError(f"{self}: it must be 0 <= first <= cap, factor >= 1 and 0 <= jitter <= 1")

    def delay(self, failures: int, rng: random.Random) -> float:
        """Return the seconds to wait after so many failures in a row (from 1)."""
        try:
            longest = min(self.cap, self.first * self.factor ** (failures - 1))
        except OverflowError:
            longest = self.cap
        return longest * (1 - self.jitter * rng.random())
