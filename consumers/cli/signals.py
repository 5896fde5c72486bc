"""SIGTERM and SIGINT for commands that run until they are told to stop: once ends the work in good order, twice ends it at once."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["Stopping", "until_signalled"]


class Stopping:
    """Whether a signal has asked to stop. A plain attribute: a signal handler must take no lock that the interrupted code may hold."""

    def __init__(self) -> None:
        self._signal = 0

    def is_set(self) -> bool:
        """Whether it is time to stop."""
        return bool(self._signal)

    @property
    def exit_code(self) -> int:
        """128 and the signal's number, as shells have it; 0 when there was none."""
        return 128 + self._signal if self._signal else 0

    def note(self, number: int, _frame: FrameType | None) -> None:
        """Take a signal down; the same signal once more does what it does by default."""
        self._signal = number
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@contextmanager
def until_signalled() -> Iterator[Stopping]:
    """Note SIGTERM and SIGINT instead of dying of them. Only in the main thread."""
    stopping = Stopping()
    before = {number: signal.signal(number, stopping.note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
