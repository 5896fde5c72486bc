"""The deliveries this process holds: received, and not yet settled."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .work import Receipt

__all__ = ["Held"]


class Held:
    """A set of identities: updates are atomic, so no lock is held."""

    def __init__(self) -> None:
        self._receipts: set[Receipt] = set()
        self._freed = threading.Event()

    def add(self, receipts: Iterable[Receipt]) -> None:
        """They were received."""
        self._receipts.update(receipts)

    def remove(self, receipts: Iterable[Receipt]) -> None:
        """They are settled, or the backend has taken them away."""
        self._receipts.difference_update(receipts)
        self._freed.set()

    def wait(self, timeout: float) -> None:
        """Wait until some were settled since the last call; at most `timeout` seconds."""
        self._freed.wait(timeout)
        self._freed.clear()

    def snapshot(self) -> list[Receipt]:
        """Those held at this moment."""
        return list(self._receipts)

    def __len__(self) -> int:
        return len(self._receipts)
