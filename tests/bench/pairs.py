"""Two ways to do the same work, run in turn on the same machine, told as a ratio: what a noisy machine can't blur."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """`ours` and `plain` each do the same work once and return how many units of it they did in a second. `goal`: a ratio to reach."""

    name: str
    unit: str
    ours: Callable[[], float]
    plain: Callable[[], float]
    goal: str = ""


class LeftOut(Exception):
    """What this pair needs is not installed here: says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What one pair came to: medians of the rates, and the ratio ours / plain of each run beside its own neighbour."""

    pair: Pair
    ours: float
    plain: float
    ratios: list[float]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def line(self) -> str:
        spread = f"{min(self.ratios):.2f} to {max(self.ratios):.2f}"
        goal = f"; goal {self.pair.goal}" if self.pair.goal else ""
        rates = f"{self.ours:>10,.0f} {self.plain:>10,.0f} {self.pair.unit:<8}"
        return f"{self.pair.name:<50} {rates} x {self.ratio:.2f} ({spread}{goal})"


def measure(pair: Pair, rounds: int) -> Figure:
    """Run both in turn, `rounds` times, after one turn of each that is not counted."""
    pair.ours(), pair.plain()
    rates = [(pair.ours(), pair.plain()) for _ in range(rounds)]
    return Figure(
        pair=pair,
        ours=statistics.median(ours for ours, _ in rates),
        plain=statistics.median(plain for _, plain in rates),
        ratios=[ours / plain for ours, plain in rates],
    )
