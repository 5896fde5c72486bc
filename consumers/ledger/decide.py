"""What the ledger decides, as pure functions over a row, what is asked, and the time. The database only stores what they return.

What `begin` answers to a claim on a key that has a row (first line that fits):

| the row                      | the claim                                      | answer            | the row then                |
|------------------------------|------------------------------------------------|-------------------|-----------------------------|
| failed, then discarded       | another job, or newer replay                   | start             | as new, then running        |
| failed, then discarded       | same job                                       | RetryScheduled    | unchanged                   |
| any other                    | another payload                                | Conflict          | unchanged                   |
| done                         | any                                            | AlreadyDone       | unchanged                   |
| any other                    | same job, older replay or copy                 | RetryScheduled    | unchanged                   |
| failed                       | newer replay                                   | start             | clean budget, then running  |
| failed                       | any other                                      | Exhausted         | unchanged                   |
| running, lease live          | any                                            | RunningElsewhere  | unchanged                   |
| running, lease expired       | any                                            | start             | charged, then running       |
| pending, due later           | any                                            | Waiting           | unchanged                   |
| pending, due                 | any                                            | start             | running                     |

where *start* is: Exhausted (and the row failed) when no attempt is left; Later (and the row unchanged) when the claim was asked ahead and this
is the last attempt or a job with a crash in its history; else Started. A key without a row is started at once.

A claim that is *held up*, because an earlier job of its ordering key has not ended, is answered AlreadyDone or RetryScheduled as above, and
otherwise Waiting, the row unchanged, if there is one.

A job is not stale for being another job: its message is the only one it has, so it follows what becomes of the key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from postroom.adapters.machine import LEASE_EXPIRED
from postroom.adapters.text import bounded
from postroom.consumers.words import conflict

from .answers import (
    Abandoned,
    AlreadyDone,
    Conflict,
    Dead,
    Done,
    Exhausted,
    Failed,
    Finished,
    Later,
    Lost,
    Released,
    RetryScheduled,
    RunningElsewhere,
    Started,
    Waiting,
)
from .entry import WORKER_LOST, charged, done, failed, released, replayed, started, suspected, taken_over

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.outbox.envelope import Envelope

    from .answers import Answer, Claim, Finish, Result
    from .entry import Entry, Holder

__all__ = ["Mark", "Verdict", "abandon", "begin", "begin_in_turn", "given_up", "holds_up", "is_held_up", "may_begin_unseen", "settle", "tally"]

Mark: TypeAlias = Literal["running", "returned", "ended"]
"""What a process noted about an attempt in memory that outlives it: its handler has begun; it has returned, and nothing is to be stored for it
but `done`; it has ended in any other way."""

LEAST_WAIT = 0.1
MOST_WAIT = 60.0
"""Bounds (seconds) for looking again at a key that runs elsewhere: after as long as it has run already, at the latest when its lease ends."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """An answer, and the row as it must then be stored: None when it is unchanged."""

    answer: Answer
    entry: Entry | None = None


def begin_in_turn(entry: Entry | None, claim: Claim, holder: Holder, now: float, *, held_up: bool) -> Verdict | None:
    """Decide on a claim; None when its key has no row and nothing is in its way."""
    verdict = begin(entry, claim, holder, now) if entry is not None else None
    if held_up and not (verdict and isinstance(verdict.answer, AlreadyDone | RetryScheduled)):
        return Verdict(Waiting(retry_in=0.0))
    return verdict


def is_held_up(claim: Claim, first: str | None) -> bool:
    """Whether a claim must wait, `first` being the first job that holds up its ordering key, if there is one."""
    return first is not None and first != claim.envelope.id


def holds_up(answer: Answer) -> bool:
    """Whether a job with this answer holds up the later ones of its ordering key: it was delivered, and neither begun, nor done, nor stale."""
    return isinstance(answer, RunningElsewhere | Waiting | Exhausted | Conflict)


def given_up(claim: Claim, answer: Answer) -> str | None:
    """Why a job with this answer goes nowhere before a person has decided; None when it does."""
    match answer:
        case Exhausted():
            return answer.last_error
        case Conflict():
            return conflict(claim.envelope.key, owner=answer.owner, theirs=answer.theirs, ours=answer.ours)
        case _:
            return None


def begin(entry: Entry, claim: Claim, holder: Holder, now: float) -> Verdict:
    """Decide on a claim whose key has a row; see the table above."""
    if entry.is_free:
        return _begin_free(entry, claim, holder, now)
    if entry.digest != claim.digest:
        return Verdict(Conflict(ours=claim.digest, theirs=entry.digest, owner=entry.job_id))
    if entry.status == "done":
        return Verdict(AlreadyDone())
    if _is_stale(entry, claim.envelope):
        return Verdict(RetryScheduled())
    if entry.status == "failed":
        return _begin_failed(entry, claim, holder, now)
    return _begin_running(entry, claim, holder, now) if entry.status == "running" else _begin_pending(entry, claim, holder, now)


def may_begin_unseen(claim: Claim) -> bool:
    """Whether a claim may be begun without a look at its key's history: not when it is asked ahead and has but one attempt."""
    return not claim.ahead or claim.max_attempts > 1


def _is_stale(entry: Entry, envelope: Envelope) -> bool:
    return entry.job_id == envelope.id and (envelope.replays, envelope.copy) < (entry.replays, entry.copy)


def _begin_free(entry: Entry, claim: Claim, holder: Holder, now: float) -> Verdict:
    if entry.job_id == claim.envelope.id and claim.envelope.replays <= entry.replays:  # a twin of the message that was discarded
        return Verdict(RetryScheduled())
    return _start(taken_over(entry, claim.digest), claim, holder, now)


def _begin_failed(entry: Entry, claim: Claim, holder: Holder, now: float) -> Verdict:
    if claim.envelope.replays > entry.replays:  # the message itself says that an operator replayed it
        return _start(replayed(entry, claim.envelope.replays), claim, holder, now)
    return Verdict(_exhausted(entry))


def _begin_running(entry: Entry, claim: Claim, holder: Holder, now: float) -> Verdict:
    if entry.fence in holder.doubtful:
        return _start(released(entry), claim, holder, now)
    left = (entry.lease_until or 0.0) - now
    if left >= 0:
        age = now - (entry.taken_at or now)
        return Verdict(RunningElsewhere(retry_in=min(max(min(age, left), LEAST_WAIT), MOST_WAIT)))
    return _start(charged(entry, LEASE_EXPIRED, now), claim, holder, now)


def _begin_pending(entry: Entry, claim: Claim, holder: Holder, now: float) -> Verdict:
    if entry.retry_at is not None and entry.retry_at > now:
        return Verdict(Waiting(retry_in=entry.retry_at - now))
    return _start(entry, claim, holder, now)


def _start(entry: Entry, claim: Claim, holder: Holder, now: float) -> Verdict:
    if entry.status == "failed" or entry.attempts >= claim.max_attempts:  # the lease took the last one, or the limit was lowered
        ended = replace(entry, status="failed", finished_at=now)
        return Verdict(_exhausted(ended), ended)
    entry = replace(entry, max_attempts=claim.max_attempts)
    if claim.ahead and (entry.is_last or entry.is_suspect):
        return Verdict(Later())
    running = started(entry, claim, holder, now)
    return Verdict(_started(running), running)


def _started(entry: Entry) -> Started:
    return Started(
        id=entry.id,
        fence=entry.fence,
        attempt=entry.attempts + 1,
        max_attempts=entry.max_attempts,
        solo=entry.is_suspect,
        last_error=entry.last_error,
    )


def _exhausted(entry: Entry) -> Exhausted:
    return Exhausted(attempts=entry.attempts, last_error=entry.last_error or "")


def settle(entry: Entry | None, finish: Finish, now: float, *, native_delay: bool) -> tuple[Result, Entry | None]:
    """Decide on a finish: its result, and the row as it must then be stored (None when unchanged).

    A finish that is stored already (its commit was done, its answer lost) has the same result once more.
    """
    if entry is None or entry.fence != finish.started.fence:
        return Lost(), None
    if entry.status == "running":
        after = _finished(entry, finish, now, native_delay=native_delay)
        return _result(after), after
    return (_result(entry) if _is_stored(entry, finish) else Lost()), None


def _finished(entry: Entry, finish: Finish, now: float, *, native_delay: bool) -> Entry:
    match finish:
        case Done():
            return done(entry, now)
        case Released():
            return released(entry)
        case Failed():
            copy = entry.copy if native_delay else entry.copy + 1
            return failed(entry, bounded(finish.error), now, delay=finish.delay, final=finish.final, copy=copy)


def _is_stored(entry: Entry, finish: Finish) -> bool:
    """Whether the row, which this attempt was the last to hold, is as this finish would have left it."""
    match finish:
        case Done():
            return entry.status == "done"
        case Released():
            return entry.status == "pending" and entry.attempts == finish.started.attempt - 1
        case Failed():
            return entry.status != "done" and entry.attempts == finish.started.attempt and entry.last_error == bounded(finish.error)


def _result(after: Entry) -> Result:
    return Dead(attempts=after.attempts, last_error=after.last_error or "") if after.status == "failed" else Finished()


def abandon(entry: Entry, mark: Mark | None, now: float, *, running: int) -> Entry:
    """Decide on a running row of a process that is dead. `running` is how many handlers it was running when it died.

    Begun and not run: given back uncharged. The only one that ran did it: charged. One of several: suspected, unless a further try could be
    one too many. Returned, with only `done` lost: done. Ended in another way, with its finish lost: uncharged, unless it was its last attempt.
    """
    if mark is None:
        return released(entry)
    if mark == "returned":
        return done(entry, now)
    if entry.is_last or (mark == "running" and running == 1):
        return charged(entry, WORKER_LOST, now)
    return suspected(entry) if mark == "running" else released(entry)


def tally(changes: Sequence[tuple[Entry, Entry]]) -> Abandoned:
    """Count what `abandon` decided, from each row before and after."""
    charges = sum(after.attempts > before.attempts for before, after in changes)
    suspicions = sum(after.suspicions > before.suspicions for before, after in changes)
    ended = sum(after.status == "done" for _, after in changes)
    return Abandoned(
        done=ended,
        released=len(changes) - ended - charges - suspicions,
        suspected=suspicions,
        charged=charges,
        failed=sum(after.status == "failed" for _, after in changes),
    )
