"""How a worker is asked to stop: once to drain, again to hurry."""

from __future__ import annotations

import threading

__all__ = ["Stop"]


class Stop:
    """Asked once: receive no more, hand back what has not begun, let running handlers end within the grace. Asked again: don't wait for them.

    Any thread may ask; a signal handler must not (`Event.set` takes a lock that the interrupted thread may hold).
    """

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.hurried = threading.Event()

    def ask(self) -> None:
        """Ask to stop, or to hurry when it was asked before."""
        (self.hurried if self.asked.is_set() else self.asked).set()
