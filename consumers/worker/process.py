"""One child of the supervisor: started, told what to do, watched until it is dead, and its leases given up at once."""

from __future__ import annotations

import logging
import random
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from postroom.adapters.errors import PostroomError
from postroom.outbox.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from .config import ChildConfig
    from .marks import Marks

__all__ = ["Child"]

_log = logging.getLogger("postroom.supervisor")

RETRY = Backoff(first=0.2, cap=10.0)
"""Between two tries to give up a dead child's leases while the database is away."""


class Child:
    """A process and the thread that waits for its end."""

    def __init__(self, config: ChildConfig, marks: Marks, abandon: Callable[[str, Marks], None], ended: Callable[[Child], object]) -> None:
        self.name = config.name
        self.number = config.number
        self.marks = marks
        self.exit_code: int | None = None
        self.buried = threading.Event()
        """Set when its leases are given up, or have run out."""
        self._lease = config.settings.lease
        self._abandon = abandon
        self._ended = ended
        # -P: nothing in the working directory is taken for a module of Python's or of ours. The application's are found when they are loaded.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "postroom.consumers.worker.child"], stdin=subprocess.PIPE, pass_fds=[config.marks], start_new_session=True
        )
        self._tell(config)
        threading.Thread(target=self._wait, name=f"postroom-child-{self._process.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def ready(self) -> bool:
        """Whether it has come so far as to ask its queues for jobs, once."""
        return self.marks.polled_at > 0

    def signal(self, number: int) -> None:
        """Send it a signal; nothing happens when it is dead."""
        self._process.send_signal(number)

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        if self.exit_code is None:
            return "nothing yet"
        return f"exit code {self.exit_code}" if self.exit_code >= 0 else signal.Signals(-self.exit_code).name

    def _tell(self, config: ChildConfig) -> None:
        """The pipe stays open: a child whose pipe ends has lost its supervisor."""
        pipe = self._process.stdin
        if pipe is None:
            raise AssertionError("the pipe was asked for")
        try:
            pipe.write(msgspec.json.encode(config) + b"\n")
            pipe.flush()
        except BrokenPipeError:
            _log.warning("child %d died before it was told what to do", self.pid)

    def _wait(self) -> None:
        self.exit_code = self._process.wait()
        self._ended(self)
        self._bury()
        self.buried.set()

    def _bury(self) -> None:
        """Try for one lease: afterwards there is nothing left to give up."""
        failures, rng, deadline = 0, random.Random(), time.monotonic() + self._lease  # noqa: S311 - to spread retries
        while time.monotonic() < deadline:
            try:
                self._abandon(self.name, self.marks)
            except PostroomError as error:
                failures += 1
                _log.warning("the leases of child %d are not given up yet: %s", self.pid, error)
                time.sleep(RETRY.delay(failures, rng))
            else:
                return
