"""Removes what the ledger need not remember any more, in small batches."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from postroom.adapters.errors import PostroomError

if TYPE_CHECKING:
    from postroom.consumers.ledger import Ledger

__all__ = ["Upkeep"]

_log = logging.getLogger("postroom.worker")

EVERY = 60.0
BATCH = 1000
BREATH = 0.05
"""Between two batches (seconds), so that jobs come first."""


class Upkeep:
    """Any number of workers may do it at once: what one removed the other does not find."""

    def __init__(self, ledger: Ledger, *, retention: float) -> None:
        self._ledger = ledger
        self._retention = retention
        self._closed = threading.Event()

    def run(self) -> None:
        """Tidy once in a while until closed. The thread of this object."""
        pause = EVERY
        while not self._closed.wait(pause):
            pause = BREATH if self._tidy() else EVERY

    def close(self) -> None:
        """Let `run` return."""
        self._closed.set()

    def _tidy(self) -> bool:
        """Remove one batch; True when there may be more."""
        try:
            return self._ledger.purge(older_than=self._retention, limit=BATCH) >= BATCH
        except PostroomError as error:
            _log.info("nothing was tidied this time: %s", error)
            return False
