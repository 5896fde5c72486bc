"""Start marks: which jobs had really started when a process died, written where a SIGKILL can't erase them.

A page of memory shared by a worker process and its supervisor. A job that was begun in the ledger and has no mark was not run: it is given back
uncharged. One whose handler had returned is done: the supervisor stores it. The page also says whether jobs can come, so the supervisor sees a child
that is alive and deaf.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postroom.consumers.ledger import Mark

__all__ = ["Marks"]

DEAF = 10.0
"""A process that has not polled its queues for so long (seconds) is not ready."""

_FREE, _RUNNING, _RETURNED, _ENDED = range(4)
_HEADER = struct.Struct("<dd")  # when it last was heard from, when it last was in trouble
_TIME = struct.Struct("<d")
_SLOT = struct.Struct("<B7xqq")  # state, row id, fence
_NAMES: dict[int, Mark] = {_RUNNING: "running", _RETURNED: "returned", _ENDED: "ended"}


class Marks:
    """One slot for each place in each lane's round. A lane writes its own slots only, so nothing is locked.

    A slot is reused in the next round, which can't begin before the finishes of the round before are stored.
    """

    def __init__(self, page: mmap.mmap, places: int) -> None:
        self._page = page
        self._places = places

    @classmethod
    def in_memory(cls, *, lanes: int, places: int) -> Marks:
        """A page of this process alone."""
        return cls(mmap.mmap(-1, _size(lanes, places)), places)

    @classmethod
    def in_file(cls, file: int, *, lanes: int, places: int) -> Marks:
        """Map the page that is, or will be, in the open file of this descriptor, which may be closed afterwards."""
        os.ftruncate(file, _size(lanes, places))
        return cls(mmap.mmap(file, _size(lanes, places)), places)

    def start(self, lane: int, place: int, row_id: int, fence: int) -> None:
        """Write that the handler of this attempt starts now. The state comes last: a half-written slot counts as free."""
        offset = self._offset(lane, place)
        _SLOT.pack_into(self._page, offset, _FREE, row_id, fence)
        self._page[offset] = _RUNNING

    def returned(self, lane: int, place: int) -> None:
        """Write that the handler has returned and that nothing is to be stored for it but `done`: whoever finds this may do so."""
        self._page[self._offset(lane, place)] = _RETURNED

    def end(self, lane: int, place: int) -> None:
        """Write that the handler has ended, however it ended."""
        self._page[self._offset(lane, place)] = _ENDED

    def polled(self, at: float) -> None:
        """Write that all queues could be polled at that time, by `time.monotonic()`."""
        _TIME.pack_into(self._page, 0, at)

    def troubled(self, at: float) -> None:
        """Write that something was in the way at that time: of jobs of one queue, or of their settlement."""
        _TIME.pack_into(self._page, _TIME.size, at)

    def ready(self, now: float) -> bool:
        """Whether all was well at the last look, and that was lately."""
        polled_at, troubled_at = _HEADER.unpack_from(self._page, 0)
        return bool(polled_at > troubled_at and now - polled_at < DEAF)

    @property
    def polled_at(self) -> float:
        """When all queues could last be polled; 0 when never."""
        seconds: float = _TIME.unpack_from(self._page, 0)[0]
        return seconds

    def read(self) -> dict[tuple[int, int], Mark]:
        """Return the mark of each attempt, by (row id, fence). Old ones are among them: their fences match no row any more."""
        slots = _SLOT.iter_unpack(self._page[_HEADER.size :])
        return {(row_id, fence): _NAMES[state] for state, row_id, fence in slots if state in _NAMES}

    def close(self) -> None:
        """Unmap the page."""
        self._page.close()

    def _offset(self, lane: int, place: int) -> int:
        return _HEADER.size + (lane * self._places + place) * _SLOT.size


def _size(lanes: int, places: int) -> int:
    return _HEADER.size + lanes * places * _SLOT.size
