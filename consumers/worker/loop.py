"""The event loop of the async handlers: one thread for all of them."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

__all__ = ["LoopThread"]

Result = TypeVar("Result")

LAST_WORDS = 2.0
"""How long (seconds) the end of the loop may take."""


class LoopThread:
    """Starts at the first use. A handler that blocks it blocks all async handlers, as in any asyncio program."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Run `coroutine`; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._running_loop())

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `last`, then stop the loop; what still runs on it is left where it is. Blocks for 4 seconds at most."""
        if self._loop is None or self._thread is None:
            return
        with suppress(TimeoutError):
            self.submit(last()).result(LAST_WORDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LAST_WORDS)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name="postroom-loop", daemon=True)
                self._thread.start()
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()
