"""Threads that don't die unnoticed."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Part", "Thread"]

_log = logging.getLogger("postroom.worker")


class Part(Protocol):
    """A part of the worker with a thread of its own: `run` returns some time after `close`."""

    def run(self) -> None:
        """Work until closed."""

    def close(self) -> None:
        """Let `run` return."""


class Thread:
    """Runs a part. When it fails by a fault of ours, `broken` is called: a worker that lacks a part must not look healthy."""

    def __init__(self, part: Part, broken: Callable[[], None]) -> None:
        self._part = part
        self._broken = broken
        self._thread = threading.Thread(target=self._serve, name=f"postroom-{type(part).__name__.lower()}", daemon=True)

    def start(self) -> None:
        """Start it."""
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """Close the part, wait up to `timeout` seconds for it, return whether it has ended."""
        self._part.close()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        try:
            self._part.run()
        except BaseException:  # noqa: BLE001 - whatever it is, it must be known
            _log.exception("%s broke down", self._thread.name)
            self._broken()
