"""The event loop of the async handlers: one thread for all of them."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

__all__ = ["LoopThread"]

_log = logging.getLogger("postroom.worker")

Result = TypeVar("Result")

LAST_WORDS = 2.0
"""How long (seconds) the end of the loop may take."""


class LoopThread:
    """Starts at the first use. A handler that blocks it blocks all async handlers, as in any asyncio program.

    A handler that exits, or one of its tasks, ends as failed and not the loop. When the loop ends all the same, `broken` is called: none of its
    handlers would ever end.
    """

    def __init__(self, broken: Callable[[], object]) -> None:
        self._broken = broken
        self._starting = threading.Lock()
        self._closing = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Run `coroutine`; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._running_loop())

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `last`, then stop the loop; what still runs on it is left where it is. Blocks for 4 seconds at most."""
        if self._loop is None or self._thread is None or not self._thread.is_alive():
            return
        with suppress(TimeoutError):
            self.submit(last()).result(LAST_WORDS)
        self._closing.set()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LAST_WORDS)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._serve, args=(self._loop,), name="postroom-loop", daemon=True)
                self._thread.start()
            return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while not self._closing.is_set():
                with suppress(SystemExit, KeyboardInterrupt):  # a task's, which has them as its result: asyncio lets them out of the loop, too
                    loop.run_forever()  # also returns when a handler stops it
        except BaseException:  # noqa: BLE001 - whatever it is, it must be known
            _log.exception("the event loop of the async handlers has ended")
            self._broken()
        else:
            loop.close()
