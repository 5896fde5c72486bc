"""Clients and forks: librdkafka's threads do not survive one."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PerProcess"]

Client = TypeVar("Client")


class PerProcess(Generic[Client]):
    """One client, made at first use, and anew in a forked child. Thread-safe."""

    def __init__(self, make: Callable[[], Client], pid: Callable[[], int] = os.getpid) -> None:
        self._make = make
        self._pid = pid
        self._lock = threading.Lock()
        self._owner = pid()
        self._client: Client | None = None

    def get(self) -> Client:
        """The client of this process."""
        if self._owner != self._pid():
            self._leave_to_parent()
        with self._lock:
            if self._client is None:
                self._client = self._make()
            return self._client

    def drop(self, client: Client | None = None) -> Client | None:
        """Forget this one, or whichever is there, and return it; None when it is not this process's."""
        mine = self._client if self._owner == self._pid() and client in (None, self._client) else None
        if mine is not None:
            self._client = None
        return mine

    def _leave_to_parent(self) -> None:
        """The parent's client stays alive here for good: ending it would wait for threads that are not there, as its lock would for its holder."""
        if self._client is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._client))
        self._client, self._owner, self._lock = None, self._pid(), threading.Lock()
