"""Waiting for news: woken at once by a NOTIFY of PostgreSQL or by this process itself, else no longer than one is willing to sleep."""

from __future__ import annotations

import select
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from postroom.adapters.errors import PostroomError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

__all__ = ["Wakeup"]

RETRY = 5.0
"""How long (seconds) a connection that failed is not tried again; until then waiting is plain sleep."""


class Wakeup:
    """Wakes one thread that waits: any thread does by `wake()`, and on PostgreSQL any process by NOTIFY on `channel`.

    It is a hint. It never raises for a database that is away, so look for work after each wait, woken or not.
    On PostgreSQL (with psycopg) it keeps one connection of its own, outside the pool, from the first wait until `close()`;
    the wait that makes it returns at once when it is made, and takes as long as that takes.
    """

    def __init__(self, engine: Engine, channel: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._channel = channel
        self._clock = clock
        self._ear, self._mouth = socket.socketpair()
        self._ear.setblocking(False)  # noqa: FBT003 - socket's own
        self._mouth.setblocking(False)  # noqa: FBT003 - socket's own
        self._line: Any = None  # psycopg's connection
        self._retry_at = clock() if (engine.dialect.name, engine.dialect.driver) == ("postgresql", "psycopg") else float("inf")

    def wait(self, timeout: float) -> bool:
        """Block until woken, or for `timeout` seconds; return whether it was woken. A wake since the last wait counts. One thread at a time."""
        if self._line is None and self._clock() >= self._retry_at and self._listen():
            return True  # what was notified before, nobody heard
        poll = select.poll()
        poll.register(self._ear, select.POLLIN)
        if self._line is not None:
            poll.register(self._line.fileno(), select.POLLIN)
        woken = bool(poll.poll(max(timeout, 0.0) * 1000))
        self._forget()
        return woken

    def wake(self) -> None:
        """Wake the waiting thread, or let its next wait return at once. Never blocks; any thread may call it, also after `close()`."""
        with suppress(OSError):  # closed, or so full of wakes that one more says nothing new
            self._mouth.send(b"\0")

    def close(self) -> None:
        """Free the connection. Not while another thread waits: wake it first. May be called twice."""
        self._hang_up()
        self._retry_at = float("inf")
        self._ear.close()
        self._mouth.close()

    def _listen(self) -> bool:
        try:
            pooled = self._engine.raw_connection()
            self._line = pooled.dbapi_connection
            pooled.detach()
            self._line.autocommit = True
            self._line.execute(f"LISTEN {self._channel}")
        except (PostroomError, SQLAlchemyError, OSError, self._driver_error()):
            self._hang_up()
        return self._line is not None

    def _forget(self) -> None:
        """Take in what woke us: all of it has been answered by now."""
        with suppress(BlockingIOError):
            while self._ear.recv(4096):
                pass
        if self._line is None:
            return
        try:
            for _ in self._line.notifies(timeout=0):
                pass
        except self._driver_error():
            self._hang_up()

    def _driver_error(self) -> type[Exception]:
        return self._engine.dialect.loaded_dbapi.Error

    def _hang_up(self) -> None:
        self._retry_at = self._clock() + RETRY
        if self._line is not None:
            self._line.close()  # raises nothing, even when it is lost already
        self._line = None
