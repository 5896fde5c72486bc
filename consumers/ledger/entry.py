"""One row of the ledger as a value, and its named transitions: `postroom.adapters.machine` for a key instead of a job. Pure; times are passed in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from postroom.adapters.machine import LEASE_EXPIRED

if TYPE_CHECKING:
    from .answers import Claim

__all__ = [
    "CRASHES",
    "FREE",
    "WORKER_LOST",
    "Entry",
    "Holder",
    "Status",
    "charged",
    "done",
    "failed",
    "released",
    "replayed",
    "started",
    "suspected",
    "taken_over",
]

Status: TypeAlias = Literal["pending", "running", "done", "failed"]

WORKER_LOST = "worker lost"
FREE = ""
"""The digest of no payload: that of a row whose job was discarded."""
CRASHES = frozenset({WORKER_LOST, LEASE_EXPIRED})
"""The errors that mean: its process ended, or went silent, under it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A row of `postroom_ledger`; its columns say what the fields are."""

    id: int
    group_name: str
    type: str
    key: str
    job_id: str
    queue: str
    digest: str
    status: Status
    attempts: int
    max_attempts: int
    suspicions: int
    fence: int
    copy: int
    replays: int
    enqueued_at: float
    taken_at: float | None = None
    lease_until: float | None = None
    worker: str | None = None
    retry_at: float | None = None
    finished_at: float | None = None
    last_error: str | None = None
    redeliveries: int | None = None

    @property
    def is_free(self) -> bool:
        """Whether its job was given up and then discarded by a person: it had no effect, and the key is free for another job."""
        return self.status == "failed" and self.digest == FREE

    @property
    def is_last(self) -> bool:
        """Whether one more charged attempt is the last one."""
        return self.attempts + self.suspicions + 1 >= self.max_attempts

    @property
    def is_suspect(self) -> bool:
        """Whether a process has died under it since its last clean end."""
        return self.suspicions > 0 or self.last_error in CRASHES


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who begins attempts in one round, and by what right.

    `fence` is a number that no other round has. `doubtful` are the fences of this worker's own rounds whose commit was never answered:
    what they began, if anything, was not run.
    """

    worker: str
    fence: int
    lease: float
    doubtful: frozenset[int] = frozenset()


def started(entry: Entry, claim: Claim, holder: Holder, now: float) -> Entry:
    """pending -> running, on behalf of the claim's job, under a fresh fence and lease. Copy and replays are those of the message that is alive."""
    return replace(
        _freed(entry),
        status="running",
        job_id=claim.envelope.id,
        queue=claim.queue,
        copy=claim.envelope.copy,
        replays=claim.envelope.replays,
        enqueued_at=claim.envelope.enqueued_at,
        fence=holder.fence,
        taken_at=now,
        lease_until=now + holder.lease,
        worker=holder.worker,
        redeliveries=claim.redeliveries,
    )


def done(entry: Entry, now: float) -> Entry:
    """running -> done."""
    return replace(_freed(entry), status="done", finished_at=now)


def failed(entry: Entry, error: str, now: float, *, delay: float, final: bool, copy: int) -> Entry:
    """running -> pending after `delay` seconds, or failed: the attempt ended cleanly, so it is no suspect (any more). `copy` lives on."""
    attempts = entry.attempts + 1
    ended = replace(_freed(entry), attempts=attempts, suspicions=0, last_error=error)
    if final or attempts >= entry.max_attempts:
        return replace(ended, status="failed", finished_at=now)
    return replace(ended, status="pending", retry_at=now + delay, copy=copy)


def released(entry: Entry) -> Entry:
    """running -> pending, uncharged: it was not run."""
    return replace(_freed(entry), status="pending")


def suspected(entry: Entry) -> Entry:
    """running -> pending, uncharged: its process died while it and others ran in it."""
    return replace(released(entry), suspicions=entry.suspicions + 1)


def charged(entry: Entry, error: str, now: float) -> Entry:
    """running -> pending, due at once, or failed: its process vanished, which is an attempt; with it every earlier suspicion is proven."""
    attempts = min(entry.attempts + entry.suspicions + 1, entry.max_attempts)
    ended = replace(_freed(entry), attempts=attempts, suspicions=0, last_error=error)
    if attempts >= entry.max_attempts:
        return replace(ended, status="failed", finished_at=now)
    return replace(ended, status="pending")


def replayed(entry: Entry, replays: int) -> Entry:
    """failed -> pending by an operator's act: a clean budget of attempts, last_error kept as history; any copy of the new replay is fresh."""
    return replace(_freed(entry), status="pending", attempts=0, suspicions=0, copy=0, replays=replays)


def taken_over(entry: Entry, digest: str) -> Entry:
    """A free row -> pending, as new: another job takes the key, with its own payload and all its attempts."""
    return replace(_freed(entry), status="pending", digest=digest, attempts=0, suspicions=0, copy=0, replays=0, last_error=None)


def _freed(entry: Entry) -> Entry:
    return replace(entry, taken_at=None, lease_until=None, worker=None, retry_at=None, finished_at=None)
