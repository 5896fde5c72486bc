"""How far a partition is done: the one number that Kafka keeps. Pure: no client, no clock."""

from __future__ import annotations

from collections import deque

__all__ = ["Watermark"]


class Watermark:
    """Offsets are begun in the order of the log and finished in any. What is committed never goes past one that is not finished.

    Gaps (compaction, the marks of transactions) are no offsets to wait for. O(1) for each offset.
    """

    def __init__(self, start: int | None = None) -> None:
        self._open: deque[int] = deque()
        self._finished: set[int] = set()
        self._next = start

    def begin(self, offset: int) -> bool:
        """A record was read. False for one that lies before the start or was read before: a client that was paused or re-assigned may repeat some."""
        if self._next is not None and offset < self._next:
            return False
        self._open.append(offset)
        self._next = offset + 1
        return True

    def finish(self, offset: int) -> None:
        """A record that was begun needs no second look."""
        self._finished.add(offset)
        while self._open and self._open[0] in self._finished:
            self._finished.remove(self._open.popleft())

    def reach(self, offset: int) -> None:
        """The log was read up to `offset`, and holds no record between the last one begun and there."""
        self._next = max(offset, self._next or 0)

    @property
    def committable(self) -> int | None:
        """The next offset that a successor is to read; None when nothing is known yet."""
        return self._open[0] if self._open else self._next

    @property
    def span(self) -> int:
        """How far reading is ahead of what can be committed, in offsets: what a successor would read again, at most."""
        return self._next - self._open[0] if self._open and self._next is not None else 0
