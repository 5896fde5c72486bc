"""A consumer in a process of its own, moved by lines on its standard input: `python -m postroom.adapters.conformance.puppet OPENER URL QUEUE NAME`.

It says `ready`, then answers each line with one line of JSON:

    receive SECONDS   the ids of the deliveries it got (at most one), which it holds now
    ack               the ids it held and acked
    publish ID        the id, once the message is confirmed
    drain SECONDS     receives and acks one by one until nothing came for so long: all those ids
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, cast

from postroom.adapters.seam import Message, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.adapters.seam import Adapter, Consumer, Delivery

__all__ = ["Puppet"]


class Puppet:
    """The strings, held by the test. `kill` is SIGKILL."""

    def __init__(self, opener: str, url: str, queue: str, name: str) -> None:
        command = [sys.executable, "-m", __name__, opener, url, queue, name]
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


def main(opener: str, url: str, queue: str, name: str) -> None:
    """Obey until the standard input ends."""
    module, _, attribute = opener.partition(":")
    adapter = cast("Callable[[str], Adapter]", getattr(importlib.import_module(module), attribute))(url)
    consumer = adapter.consume({queue: 1}, group="conformance", prefetch=1, name=name)
    held: list[Delivery] = []
    _say("ready")
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        _say(_publish(adapter, queue, argument) if command == "publish" else _obey(consumer, held, command, float(argument or 0)))
    consumer.close()
    adapter.close()


def _obey(consumer: Consumer, held: list[Delivery], command: str, seconds: float) -> list[str]:
    if command == "drain":
        return _drain(consumer, seconds)
    if command == "receive":
        held += consumer.receive(1, seconds)
    names = [delivery.message.id for delivery in held]
    if command == "ack":
        consumer.ack(held)
        held.clear()
    return names


def _publish(adapter: Adapter, queue: str, identity: str) -> list[str]:
    (outcome,) = adapter.publish([Message(id=identity, queue=queue, body=b"{}")])
    return [identity] if outcome.verdict is Verdict.CONFIRMED else [outcome.reason]


def _drain(consumer: Consumer, seconds: float) -> list[str]:
    done = []
    while deliveries := consumer.receive(1, seconds):
        consumer.ack(deliveries)
        done += [delivery.message.id for delivery in deliveries]
    return done


def _say(answer: object) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201 - its strings


if __name__ == "__main__":
    main(*sys.argv[1:])
