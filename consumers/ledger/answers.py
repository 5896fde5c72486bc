"""What is asked of the ledger and what it answers: plain values, without a database behind them.

A worker hands in `Claim`s and finishes, and gets one answer for each claim and one result for each finish, in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from postroom.outbox.holdups import Holdup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroom.adapters.seam import Message
    from postroom.outbox.envelope import Envelope

__all__ = [
    "Abandoned",
    "AlreadyDone",
    "Answer",
    "Claim",
    "Conflict",
    "Dead",
    "Done",
    "Exhausted",
    "Failed",
    "Finish",
    "Finished",
    "Later",
    "Lost",
    "Released",
    "Result",
    "RetryScheduled",
    "RunningElsewhere",
    "Started",
    "Waiting",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """May this delivery be run? `queue` is the carrier it came from, `digest` names its payload (at most 32 characters).

    `ahead` says that it will wait behind another job of its lane: then a last attempt, or a job with a crash in its history, is not begun.
    `ordered` is the queue's. Without native delay the ledger keeps the order of its ordering keys over retries, deferred copies and dead letters.
    `back` is the carrier that copies of the message are sent to, where that is not `queue`. `redeliveries` is the backend's own count of earlier
    deliveries: noted, for people to read, and nothing is decided by it.
    """

    message: Message
    envelope: Envelope
    queue: str
    group: str
    digest: str
    max_attempts: int
    ahead: bool = False
    ordered: bool = False
    back: str = ""
    redeliveries: int | None = None

    @property
    def holdup(self) -> Holdup:
        """What this job is to the later ones of its ordering key, if it can't end."""
        return Holdup(queue=self.back or self.queue, ordering_key=self.envelope.ordering_key, job=self.envelope.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Run it. The attempt is durable and leased; `id` and `fence` name it and no other.

    `attempt` counts from 1. `solo`: it may have killed its process before, so nothing else may run in this process until it has ended.
    `last_error` is how its attempt before this one ended. `holdup`: it holds up the later jobs of its ordering key, until it is done.
    """

    id: int
    fence: int
    attempt: int
    max_attempts: int
    solo: bool = False
    last_error: str | None = None
    holdup: Holdup | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyDone:
    """The work of this key is done: ack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningElsewhere:
    """Another attempt holds this key: look again after `retry_in` seconds; never ack it as done.

    Without native delay the ledger has already put the deferred copy into the outbox: ack this delivery.
    """

    retry_in: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryScheduled:
    """A stale copy: a newer copy of this job is on its way or was here already, or a person has discarded the job: ack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The next attempt of this key is due in `retry_in` seconds, or (0) an earlier job of its ordering key has not ended: defer it too."""

    retry_in: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhausted:
    """The key has failed for good: dead-letter this delivery without running it."""

    attempts: int
    last_error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """The same key with another payload: dead-letter. `ours` is the digest of this delivery, `theirs` that of the key's `owner`, a job's id."""

    ours: str
    theirs: str
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """Asked ahead, but it must be begun first in its lane (last attempt, or solo): claim it again, not ahead. Nothing has changed."""


Answer = Started | AlreadyDone | RunningElsewhere | RetryScheduled | Waiting | Exhausted | Conflict | Later


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The handler returned. `outgoing` are the outbox rows (`build_row`) of the jobs it enqueued: stored together with `done`, or not at all."""

    started: Started
    outgoing: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The attempt failed; it may be tried again after `delay` seconds unless it is `final` or was the last one.

    `claim` is the claim that was answered with `started`: without native delay the retry is a new copy of its message, in the outbox,
    addressed to the carrier it came from.
    """

    started: Started
    claim: Claim
    error: str
    delay: float = 0.0
    final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """It was begun and has not been run (shutdown, cancelled): handed back, uncharged, and not to be delivered for `delay` seconds."""

    started: Started
    delay: float = 0.0


Finish = Done | Failed | Released


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Stored. Settle the delivery: ack a Done; for a Failed ack where the retry went through the outbox, else `consumer.fail`; release a Released."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead:
    """Stored, and that was the last attempt: dead-letter the delivery."""

    attempts: int
    last_error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Not stored: the attempt was not the holder any more, and whoever is decides. Its outgoing jobs are dropped; leave its delivery alone."""


Result = Finished | Dead | Lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """What became of a dead process's attempts, as counts."""

    done: int = 0
    released: int = 0
    suspected: int = 0
    charged: int = 0
    failed: int = 0

    def __str__(self) -> str:
        """Tell it in words; empty when there was nothing."""
        words = {"done": self.done, "given back": self.released, "suspected": self.suspected, "charged": self.charged, "given up": self.failed}
        return ", ".join(f"{count} {word}" for word, count in words.items() if count)
