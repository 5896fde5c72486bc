"""Scripted adapters: brokers that answer what a test tells them to, and remember what they were given."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence

from postroom.adapters.seam import Capabilities, Message, Outcome, Verdict

CONFIRMED = Outcome(Verdict.CONFIRMED)
REFUSED = Outcome(Verdict.REFUSED, "message too large")
BUSY = Outcome(Verdict.BUSY, "queue is full")
UNKNOWN = Outcome(Verdict.UNKNOWN, "connection lost")

Answer = Outcome | Exception
"""What happens to one message: an outcome, or an error that `publish` raises when it comes to it."""


class Scripted:
    """Confirms everything but what it was told otherwise. Thread-safe.

    `published` are the messages it confirmed, `batches` the ids of each call. `answers` holds, for a message id, its next answers in order; `always`
    one for every time. `away` is raised by each call while it is set. `before` is called with the messages of each call, before anything else.
    """

    def __init__(self, *, atomic: bool = True) -> None:
        self.capabilities = Capabilities(
            name="scripted", durable=True, shared=True, native_delay=False, atomic_publish=atomic, clock_leases=False, counts_attempts=False
        )
        self.published: list[Message] = []
        self.batches: list[list[str]] = []
        self.answers: defaultdict[str, list[Answer]] = defaultdict(list)
        self.always: dict[str, Answer] = {}
        self.away: Exception | None = None
        self.before: Callable[[Sequence[Message]], object] = lambda _: None
        self.tidied: list[tuple[float, int]] = []
        self._lock = threading.Lock()

    @property
    def ids(self) -> list[str]:
        """The ids of the confirmed messages, in order."""
        return [message.id for message in self.published]

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self.before(messages)
        with self._lock:
            self.batches.append([message.id for message in messages])
            if self.away is not None:
                raise self.away
            return [self._answer(message) for message in messages]

    def _answer(self, message: Message) -> Outcome:
        planned = self.answers[message.id]
        answer = planned.pop(0) if planned else self.always.get(message.id, CONFIRMED)
        if isinstance(answer, Exception):
            raise answer
        if answer.verdict is Verdict.CONFIRMED:
            self.published.append(message)
        return answer

    def tidy(self, *, older_than: float, limit: int = 1000) -> int:
        self.tidied.append((older_than, limit))
        return 0


class Gate:
    """Blocks whoever passes until the test opens it: `before=gate.wait` makes a broker that does not answer."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def wait(self, _: object = None) -> None:
        self.entered.set()
        if not self.opened.wait(60):
            raise TimeoutError("the test never opened the gate")
