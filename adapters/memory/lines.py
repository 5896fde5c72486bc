"""The lines in which pending jobs wait in memory: first in first out, and the same with an order kept per key."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Generic, Protocol, TypeVar

__all__ = ["Line", "OrderedLine", "Waiting"]

NEVER = float("inf")


class Waiting(Protocol):
    """What can wait in a line."""

    @property
    def rank(self) -> tuple[float, int]:
        """When it may be taken, and its number, which no other has: the lowest goes first. Fixed while it waits."""

    @property
    def ordering_key(self) -> str | None:
        """Jobs of one key keep their order; None has none to keep."""


Item = TypeVar("Item", bound=Waiting)


class Line(Generic[Item]):
    """Sorted by rank. O(1) at both ends for new jobs; those that come back or wait for their time go through a heap beside it."""

    def __init__(self) -> None:
        self._fresh: deque[Item] = deque()
        self._others: list[tuple[tuple[float, int], Item]] = []

    def enter(self, item: Item, now: float) -> None:
        """A new job joins."""
        if item.rank[0] <= now and not (self._fresh and self._fresh[-1].rank > item.rank):
            self._fresh.append(item)
        else:
            heappush(self._others, (item.rank, item))

    def come_back(self, item: Item) -> None:
        """A job that was taken from here returns, to the place of its rank."""
        heappush(self._others, (item.rank, item))

    def leave(self, item: Item) -> None:
        """A job that was taken from here will not return."""

    def behind(self, item: Item) -> int:  # noqa: ARG002 - whichever it is
        """How many jobs wait for this one, which was taken, to leave."""
        return 0

    def is_ready(self, now: float) -> bool:
        """Whether a job is due."""
        return self.due() <= now

    def take(self) -> Item:
        """Remove and return the first job; only after `is_ready` said yes."""
        if self._fresh and (not self._others or self._fresh[0].rank < self._others[0][0]):
            return self._fresh.popleft()
        return heappop(self._others)[1]

    def due(self) -> float:
        """When the first job becomes due (maybe in the past); infinity for an empty line."""
        fresh = self._fresh[0].rank[0] if self._fresh else NEVER
        return min(fresh, self._others[0][0][0]) if self._others else fresh


class OrderedLine(Line[Item]):
    """A line in which only the first unfinished job of each key waits; the others of its key stand behind it, whatever becomes of it.

    A job that its caller delayed joins its key's others when it is due, so it never holds them back before.
    """

    def __init__(self) -> None:
        super().__init__()
        self._keys: dict[str, deque[Item]] = {}
        self._delayed: list[tuple[tuple[float, int], Item]] = []

    def enter(self, item: Item, now: float) -> None:
        """A new job joins its key's line, once it is due."""
        self._let_in(now)
        if item.rank[0] > now:
            heappush(self._delayed, (item.rank, item))
        else:
            self._join(item, now)

    def leave(self, item: Item) -> None:
        """The first of its key has ended: the next one may go."""
        if item.ordering_key is None:
            return
        others = self._keys[item.ordering_key]
        others.popleft()
        if others:
            self.come_back(others[0])
        else:
            del self._keys[item.ordering_key]

    def behind(self, item: Item) -> int:
        """How many jobs of its key wait for it."""
        return 0 if item.ordering_key is None else len(self._keys[item.ordering_key]) - 1

    def is_ready(self, now: float) -> bool:
        """Whether a job is due and first of its key."""
        self._let_in(now)
        return super().is_ready(now)

    def due(self) -> float:
        """When the next job becomes due."""
        return min(super().due(), self._delayed[0][0][0]) if self._delayed else super().due()

    def _let_in(self, now: float) -> None:
        while self._delayed and self._delayed[0][0][0] <= now:
            self._join(heappop(self._delayed)[1], now)

    def _join(self, item: Item, now: float) -> None:
        if item.ordering_key is None:
            super().enter(item, now)
            return
        others = self._keys.setdefault(item.ordering_key, deque())
        others.append(item)
        if len(others) == 1:
            super().enter(item, now)
