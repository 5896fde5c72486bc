"""The records of one partition that were read and wait to be handed out."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .entry import Entry

__all__ = ["Shelf"]


class Shelf:
    """Lowest offset first. With `ordered`, of each key only the first unfinished record may be taken; the others of its key stand behind it."""

    def __init__(self, *, ordered: bool) -> None:
        self._ordered = ordered
        self._fresh: deque[Entry] = deque()
        self._returned: list[tuple[int, Entry]] = []
        self._keys: dict[str, deque[Entry]] = {}
        self.size = 0
        """How many wait, those behind another of their key included."""

    def enter(self, entry: Entry) -> None:
        """A record was read; its offset is the highest so far."""
        self.size += 1
        if self._ordered and entry.key is not None:
            others = self._keys.setdefault(entry.key, deque())
            others.append(entry)
            if len(others) > 1:
                return
        self._fresh.append(entry)

    def come_back(self, entry: Entry) -> None:
        """A record that was taken returns, to its old place."""
        self.size += 1
        heappush(self._returned, (entry.offset, entry))

    def leave(self, entry: Entry) -> None:
        """A record that was taken has ended: the next of its key may go."""
        if not self._ordered or entry.key is None:
            return
        others = self._keys[entry.key]
        others.popleft()
        if others:
            heappush(self._returned, (others[0].offset, others[0]))
        else:
            del self._keys[entry.key]

    def take(self) -> Entry:
        """Remove and return the first that may go; only when `is_ready`."""
        self.size -= 1
        if self._fresh and (not self._returned or self._fresh[0].offset < self._returned[0][0]):
            return self._fresh.popleft()
        return heappop(self._returned)[1]

    @property
    def is_ready(self) -> bool:
        """Whether one may go."""
        return bool(self._fresh or self._returned)
