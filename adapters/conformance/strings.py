"""The test's end of a puppet's strings."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import cast

__all__ = ["Puppet"]


class Puppet:
    """A running puppet. See the module `puppet` for what it obeys."""

    def __init__(self, opener: str, url: str, queue: str, name: str) -> None:
        command = [sys.executable, "-m", f"{__package__}.puppet", opener, url, queue, name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own module
        self._answer()

    def ask(self, line: str) -> list[str]:
        """Send a command and wait for its answer."""
        self.send(line)
        return self.answer()

    def send(self, line: str) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def answer(self) -> list[str]:
        """Wait for the answer to the oldest command that has none yet."""
        return cast("list[str]", json.loads(self._answer()))

    def kill(self) -> None:
        """End it with no chance to say goodbye."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the puppet ended with exit code {self._process.wait()}; its standard error says why")
        return line
