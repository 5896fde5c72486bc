"""Group commit: what all lanes want from the ledger at one moment goes into one transaction."""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

from postroom.adapters.errors import Unavailable
from postroom.consumers.ledger.answers import Done, Lost
from postroom.outbox.backoff import Backoff

from .failure import failure
from .work import claim_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.consumers.ledger import Ledger
    from postroom.consumers.ledger.answers import Answer, Claim, Finish, Result

    from .pipeline import Pipeline
    from .work import Work

__all__ = ["Committer"]

Ended: TypeAlias = "tuple[Work, Finish]"
Stored: TypeAlias = "tuple[Sequence[tuple[Work, Finish, Result]], Sequence[Answer | None]]"

_log = logging.getLogger("postroom.worker")

OUTAGE = Backoff(first=0.1, cap=5.0)
"""Between two tries while the database gives no answer."""

LINGER = 0.25
"""How long (seconds) a finish waits at most for others to be stored with."""


@dataclass(frozen=True, slots=True)
class _Request:
    """The claims of one lane's next round, and where it waits for the answers."""

    works: Sequence[Work]
    reply: SimpleQueue[Sequence[Answer | None]] = field(default_factory=SimpleQueue)


class Committer:
    """The one thread that talks to the ledger about jobs. It tries for as long as it takes: no outcome is forgotten while the process lives."""

    def __init__(self, ledger: Ledger, pipeline: Pipeline) -> None:
        self._ledger = ledger
        self._pipeline = pipeline
        self._rng = random.Random()  # noqa: S311 - to spread retries
        self._inbox: SimpleQueue[_Request | None] = SimpleQueue()
        self._finishes: deque[Ended] = deque()
        self._closing = threading.Event()
        self._gave_up = threading.Event()

    @property
    def waiting(self) -> int:
        """About how many lanes wait for the next round."""
        return self._inbox.qsize()

    def begin(self, works: Sequence[Work]) -> Sequence[Answer | None]:
        """Claim these, the first to be run at once and the others behind it; blocks until the ledger has answered.

        All finishes handed in before are stored by then. An answer is None when the ledger could not give one.
        """
        request = _Request(works)
        self._inbox.put(request)
        return request.reply.get()

    def hand_in(self, work: Work, finish: Finish) -> None:
        """Store this finish with the next round; returns at once."""
        self._finishes.append((work, finish))

    def wake(self) -> None:
        """Begin a round now, if there is anything to store."""
        self._inbox.put(None)

    def run(self) -> None:
        """Hold rounds until closed and nothing is left. The thread of this object."""
        while not (self._closing.is_set() and self._inbox.empty() and not self._finishes):
            requests = self._collect()
            finishes = self._take_finishes()
            if requests or finishes:
                self._round(finishes, requests)

    def close(self) -> None:
        """Let `run` return once everything is stored."""
        self._closing.set()
        self.wake()

    def give_up(self) -> None:
        """Don't wait for the database any more: what is not stored yet is dropped, and will be redelivered."""
        self._gave_up.set()

    def _collect(self) -> list[_Request]:
        requests: list[_Request | None] = []
        try:
            requests.append(self._inbox.get(timeout=LINGER))
            while True:
                requests.append(self._inbox.get_nowait())
        except Empty:
            return [request for request in requests if request]

    def _take_finishes(self) -> list[Ended]:
        return [self._finishes.popleft() for _ in range(len(self._finishes))]

    def _round(self, finishes: list[Ended], requests: list[_Request]) -> None:
        claims = [claim_of(work, ahead=place > 0) for request in requests for place, work in enumerate(request.works)]
        outcomes, answers = self._persist(finishes, claims)
        left = iter(answers)
        for request in requests:
            request.reply.put([next(left) for _ in request.works])
        self._pipeline.settled(outcomes)

    def _persist(self, finishes: Sequence[Ended], claims: Sequence[Claim]) -> Stored:
        """One round, tried until the database answers or nobody wants to wait for it any more."""
        failures = 0
        while True:
            try:
                results, answers = self._ledger.round([finish for _, finish in finishes], claims)
                return [(work, finish, result) for (work, finish), result in zip(finishes, results, strict=True)], answers
            except Unavailable as error:
                failures += 1
                _log.warning("the ledger can't be reached (failure %d), %d outcomes wait: %s", failures, len(finishes), error)
            except Exception as error:  # noqa: BLE001 - the other jobs of the round must not suffer for one
                return self._isolate(finishes, claims, error)
            if self._gave_up.wait(OUTAGE.delay(failures, self._rng)):
                _log.error("gave up: %d outcomes are not stored; their jobs will be delivered again", len(finishes))
                return [(work, finish, Lost()) for work, finish in finishes], [None] * len(claims)

    def _isolate(self, finishes: Sequence[Ended], claims: Sequence[Claim], error: Exception) -> Stored:
        """A round can't be stored as it is: halve it until what is at fault is alone. What one half has begun stands, whatever the other meets."""
        if len(finishes) + len(claims) == 1:
            return self._without(finishes, error)
        _log.warning("a round failed and is done again in halves: %s", error)
        middle, half = len(finishes) // 2, (len(claims) + 1) // 2
        first, second = self._persist(finishes[:middle], claims[:half]), self._persist(finishes[middle:], claims[half:])
        return [*first[0], *second[0]], [*first[1], *second[1]]

    def _without(self, finishes: Sequence[Ended], error: Exception) -> Stored:
        """The ledger can't take this one. A claim gets no answer; of a done job the fault is in what it enqueued: it has failed."""
        _log.error("the ledger can't store this: %s", error, exc_info=error)
        if not finishes:
            return [], [None]
        [(work, finish)] = finishes
        if isinstance(finish, Done) and finish.outgoing:
            return self._persist([(work, failure(work, error, self._rng))], [])
        return [(work, finish, Lost())], []
