"""The state machine of a job: pure values and named transitions; no I/O, no clock of its own.

                                        ┌─renew─┐
                                        ▼       │
    none ──enqueue──▶ pending ──take──▶ running ┴──ack──▶ done
                       ▲  ▲               │  │
                       │  └── release; fail, │
                       │   reclaim while     │ fail, reclaim on the last attempt;
                       │   attempts are left │ dead_letter
                       │                     ▼
                       └───────retry────── failed

Every backend and the ledger are judged against this module. Times are seconds since the epoch, always passed in.
A `Job` holds what the arrows need; what the job is about (type, payload, key) travels beside it and changes nothing here.
A job can run more than once (its worker may vanish after the work and before the ack), so its handler must be idempotent on `key`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from .errors import IllegalTransition, LeaseLost

__all__ = [
    "LEASE_EXPIRED",
    "UNLIMITED",
    "Job",
    "Lease",
    "Status",
    "ack",
    "dead_letter",
    "enqueue",
    "exhausts",
    "fail",
    "is_abandoned",
    "is_due",
    "reclaim",
    "release",
    "renew",
    "retry",
    "take",
]

UNLIMITED = 2**31 - 1
"""`max_attempts` of a job whose limit someone else keeps."""

LEASE_EXPIRED = "lease expired"
"""`last_error` of a job whose worker vanished."""


class Status(Enum):
    """Where a job is in its life."""

    PENDING = "pending"
    """Enqueued, or waiting for its next attempt; nobody holds it. It may be taken once `available_at` has come."""
    RUNNING = "running"
    """Held by one worker under one lease. It leaves by ack, fail, release, or when the lease runs out."""
    DONE = "done"
    """Finished. Terminal."""
    FAILED = "failed"
    """Attempts exhausted, dead-lettered, `last_error` says why. Only an operator's retry brings it back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right of one worker to settle a job: `token` is fresh at each take, `until` is when the right may be taken away."""

    token: str
    until: float
    worker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job. Build it with `enqueue`, change it with the transitions: impossible combinations raise ValueError."""

    id: str
    available_at: float
    enqueued_at: float
    max_attempts: int
    status: Status = Status.PENDING
    attempts: int = 0
    taken_at: float | None = None
    lease: Lease | None = None
    last_error: str | None = None
    finished_at: float | None = None
    replays: int = 0

    def __post_init__(self) -> None:
        """Refuse the states that must be unrepresentable."""
        running = self.status is Status.RUNNING
        rules = {
            "max_attempts is at least 1": self.max_attempts >= 1,
            "0 <= attempts <= max_attempts": 0 <= self.attempts <= self.max_attempts,
            "a lease if and only if running": (self.lease is not None) == running,
            "taken_at if and only if running": (self.taken_at is not None) == running,
            "an unfinished job has attempts left": self.attempts < self.max_attempts or self.status is Status.FAILED,
            "a failed job has last_error": self.last_error is not None or self.status is not Status.FAILED,
            "finished_at if and only if done or failed": (self.finished_at is not None) == (self.status in {Status.DONE, Status.FAILED}),
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise ValueError(f"job {self.id}: {'; '.join(broken)}")


def enqueue(job_id: str, *, now: float, max_attempts: int, delay: float = 0.0) -> Job:
    """none -> pending: attempts 0, available once `delay` seconds have passed."""
    return Job(id=job_id, enqueued_at=now, available_at=now + delay, max_attempts=max_attempts)


def is_due(job: Job, now: float) -> bool:
    """Whether `take` would accept the job now."""
    return job.status is Status.PENDING and job.available_at <= now


def is_abandoned(job: Job, now: float) -> bool:
    """Running under a lease that has run out: derived, never stored."""
    return job.lease is not None and job.lease.until < now


def exhausts(job: Job) -> bool:
    """Whether one more failed attempt is the last one."""
    return job.attempts + 1 >= job.max_attempts


def take(job: Job, lease: Lease, now: float) -> Job:
    """pending -> running: taken_at is now, under a fresh lease."""
    if not is_due(job, now):
        raise IllegalTransition(f"job {job.id} can't be taken: it is {job.status.value}, available at {job.available_at}, and it is {now}")
    return replace(job, status=Status.RUNNING, taken_at=now, lease=lease)


def ack(job: Job, token: str, now: float) -> Job:
    """running -> done. A lease that ran out and that nobody reclaimed still holds: the work is done, and nobody else has begun it."""
    _require_holder(job, token, "acked")
    return replace(job, status=Status.DONE, taken_at=None, lease=None, finished_at=now)


def fail(job: Job, token: str, error: str, now: float, backoff: float = 0.0) -> Job:
    """running -> pending after `backoff` seconds while attempts are left, else -> failed."""
    _require_holder(job, token, "failed")
    return _charge(job, error, now, backoff)


def dead_letter(job: Job, token: str, error: str, now: float) -> Job:
    """running -> failed at once, attempts left or not: an error that no retry can mend. It is charged like any failed attempt."""
    _require_holder(job, token, "dead-lettered")
    return _give_up(job, error, now, job.attempts + 1)


def reclaim(job: Job, now: float) -> Job:
    """running -> pending or failed when the lease has run out: its worker vanished, which is an attempt."""
    if not is_abandoned(job, now):
        raise IllegalTransition(f"job {job.id} can't be reclaimed: it is {job.status.value} and no lease of it has run out")
    return _charge(job, LEASE_EXPIRED, now, 0.0)


def release(job: Job, token: str, now: float, delay: float = 0.0) -> Job:
    """running -> pending, uncharged: handed back un-run, at its old place in the line, or deferred by `delay` seconds."""
    _require_holder(job, token, "released")
    available_at = now + delay if delay else job.available_at
    return replace(job, status=Status.PENDING, taken_at=None, lease=None, available_at=available_at)


def renew(job: Job, token: str, until: float) -> Job:
    """running -> running: the same lease, lasting until `until`."""
    lease = _require_holder(job, token, "renewed")
    return replace(job, lease=replace(lease, until=until))


def retry(job: Job, now: float) -> Job:
    """failed -> pending by an operator's act: a clean budget of attempts, last_error kept as history."""
    if job.status is not Status.FAILED:
        raise IllegalTransition(f"job {job.id} can't be retried: it is {job.status.value}, not failed")
    return replace(job, status=Status.PENDING, attempts=0, available_at=now, finished_at=None, replays=job.replays + 1)


def _charge(job: Job, error: str, now: float, backoff: float) -> Job:
    if exhausts(job):
        return _give_up(job, error, now, job.max_attempts)
    return replace(job, status=Status.PENDING, attempts=job.attempts + 1, taken_at=None, lease=None, last_error=error, available_at=now + backoff)


def _give_up(job: Job, error: str, now: float, attempts: int) -> Job:
    return replace(job, status=Status.FAILED, attempts=attempts, taken_at=None, lease=None, last_error=error, finished_at=now)


def _require_holder(job: Job, token: str, verb: str) -> Lease:
    if job.status is not Status.RUNNING or job.lease is None:
        raise IllegalTransition(f"job {job.id} can't be {verb}: it is {job.status.value}, not running")
    if job.lease.token != token:
        raise LeaseLost(f"job {job.id} can't be {verb}: another holder has it now")
    return job.lease
