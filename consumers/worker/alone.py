"""Who may run beside whom: a job with a crash in its history runs alone in its process, so that it can't use up its neighbours' attempts."""

from __future__ import annotations

import threading

__all__ = ["Alone"]


class Alone:
    """Lanes come and go together; a lane with a solo job waits until all have left, and keeps the others out until it leaves. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: set[object] = set()
        self._solo: object | None = None

    def enter(self, lane: object, *, solo: bool = False) -> None:
        """Wait until `lane` may run jobs; with `solo` until it is the only one."""
        with self._changed:
            self._changed.wait_for(lambda: self._solo is None)
            if solo:
                self._solo = lane
                self._changed.wait_for(lambda: not self._inside)
            self._inside.add(lane)

    def leave(self, lane: object) -> None:
        """`lane` runs nothing any more. May be said for it, and twice."""
        with self._changed:
            self._inside.discard(lane)
            if self._solo is lane:
                self._solo = None
            self._changed.notify_all()

    @property
    def claimed(self) -> bool:
        """Whether a solo job runs, or waits for the others to leave."""
        return self._solo is not None

    def wait(self) -> None:
        """Wait until no solo job runs or waits: before a lane begins jobs that it couldn't run."""
        with self._changed:
            self._changed.wait_for(lambda: self._solo is None)
