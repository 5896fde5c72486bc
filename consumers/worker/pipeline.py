"""The life of one delivery, from top to bottom: decode, begin, handle, finish, settle.

    decode    what arrived becomes a Work with its handler; or no job can be read in it: to the dead     `decode`
              letters; or it is none of ours, says a mapper: acked
    begin     the ledger's answer: run it, ack it, defer it, or give it up                               `answered`
    handle    the handler's end becomes a finish                                                         attempts.py
    finish    the ledger stores it, together with what the handler enqueued                              committer.py
    settle    what was stored becomes an ack, a failure, a release or a dead letter                      `settled`

Nothing is acked before its outcome is stored.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from postroom.adapters.errors import Undecodable
from postroom.consumers.ledger.answers import (
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
from postroom.consumers.mapping import Mapped, unmappable
from postroom.consumers.words import conflict
from postroom.outbox.envelope import digest, is_foreign, read_envelope

from .gates import gates_of
from .work import Passed, Refused, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from postroom.adapters.seam import Delivery
    from postroom.consumers.jobs import Jobs
    from postroom.consumers.ledger.answers import Answer, Finish, Result
    from postroom.outbox.envelope import Envelope

    from .buffer import Buffer
    from .settler import Settler

__all__ = ["Pipeline"]

_log = logging.getLogger("postroom.worker")

UNSURE = 1.0
"""How long (seconds) a delivery stays away about which the ledger gave no answer, or whose attempt was lost."""


class Pipeline:
    """What each step of a delivery's life leads to. Thread-safe. `clock` tells the seconds since the epoch."""

    def __init__(self, jobs: Jobs, buffer: Buffer, settler: Settler, *, native_delay: bool, clock: Callable[[], float] = time.time) -> None:
        self._jobs = jobs
        self._buffer = buffer
        self._settler = settler
        self._native_delay = native_delay
        self._clock = clock
        self._counting = threading.Lock()
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> Counter[str]:
        """How many deliveries ended in which way: done, failed, dead, duplicates, deferred, released, lost, passed."""
        with self._counting:
            return self._counts.copy()

    def decode(self, delivery: Delivery) -> Work | Refused | Passed:
        """Say what arrived: a Work, that is a job, if only one to be given up; or Refused; or Passed, when a mapper says that it is no job."""
        try:
            job = self._read(delivery)
        except Undecodable as error:
            return Refused(delivery=delivery, reason=str(error))
        return Passed(delivery=delivery) if job is None else self._work(delivery, job)

    def turned_away(self, receipts: Iterable[Refused | Passed]) -> None:
        """What is no Work: to the dead letters, as it is, or acked."""
        for receipt in receipts:
            match receipt:
                case Refused():
                    _log.warning("dead letter in %s: %s", receipt.delivery.queue, receipt.reason)
                    self._count("dead")
                    self._settler.dead_letter(receipt, receipt.reason)
                case Passed():
                    _log.info("passed over in %s: message %s is no job, says its mapper", receipt.delivery.queue, receipt.delivery.message.id)
                    self._count("passed")
                    self._settler.ack([receipt])

    def answered(self, work: Work, answer: Answer | None) -> bool:
        """Do what the ledger's answer to a claim asks for; True when the work is to be run. None: there was no answer."""
        match answer:
            case Started():
                work.started = answer
                return True
            case Later():
                work.alone = True
                self._buffer.put_first([work])
            case AlreadyDone() | RetryScheduled():
                _log.info("%s: acked, %s", work, "done before" if isinstance(answer, AlreadyDone) else "a newer copy exists, or it was discarded")
                self._ack([work], "duplicates")
            case RunningElsewhere() | Waiting():
                self._defer(work, answer.retry_in)
            case Exhausted():
                self._give_up(work, _exhausted(answer), answer.attempts)
            case Conflict():
                self._give_up(work, conflict(work.envelope.key, owner=answer.owner, theirs=answer.theirs, ours=answer.ours))
            case None:
                self.release([work], UNSURE)
        return False

    def settled(self, outcomes: Iterable[tuple[Work, Finish, Result]]) -> None:
        """Tell the backend what the ledger has stored."""
        done: list[Work] = []
        for work, finish, result in outcomes:
            if isinstance(result, Finished) and isinstance(finish, Done):
                done.append(work)
            else:
                self._settle(work, finish, result)
        if done:
            self._ack(done, "done")

    def release(self, works: Sequence[Work], delay: float = 0.0) -> None:
        """Hand back what was not run."""
        if not works:
            return
        self._count("released", len(works))
        self._settler.release(works, delay)
        self._over(works)

    def _read(self, delivery: Delivery) -> Envelope | Mapped | None:
        message, mapper = delivery.message, self._jobs.mapper_of(delivery.queue)
        if mapper is not None and is_foreign(message):
            return mapper.map(message, self._clock())
        envelope = read_envelope(message)
        if envelope.mapped is None:
            return envelope
        if mapper is None:
            return unmappable(envelope, f"it is a message of another program, and queue {delivery.queue!r} has no mapper here (any more)")
        return mapper.map_again(message, envelope)

    def _work(self, delivery: Delivery, job: Envelope | Mapped) -> Work:
        """A job without a handler is one, too: it has its turn in the line of its ordering key, and the ledger knows that it was given up."""
        envelope, mapped = (job.envelope, job) if isinstance(job, Mapped) else (job, None)
        handler, misfit = self._jobs.find(delivery.queue, envelope.type), mapped.misfit if mapped else ""
        if handler is None:
            handler = self._jobs.stand_in(delivery.queue)
            misfit = f"no handler for type {envelope.type!r} here; its queue is {delivery.queue!r}"
        known = envelope.mapped or digest(delivery.message.body)
        work = Work(delivery=delivery, envelope=envelope, handler=handler, digest=known, mapped=mapped, misfit=misfit)
        work.gates = gates_of(work)
        return work

    def _settle(self, work: Work, finish: Finish, result: Result) -> None:
        match finish, result:
            case _, Lost():
                _log.warning("%s: attempt %d is no longer ours, its outcome is dropped", work, finish.started.attempt)
                self._count("lost")
                self.release([work], UNSURE)
            case _, Dead():
                self._give_up(work, _exhausted(result), result.attempts)
            case Released(), _:
                self.release([work], finish.delay)
            case Failed(), _:
                self._failed(work, finish)
            case Done(), _:
                self._ack([work], "done")

    def _failed(self, work: Work, finish: Failed) -> None:
        """There will be another attempt: the backend's own, or the copy that the ledger has put into the outbox."""
        if not self._native_delay:
            self._ack([work], "failed")
            return
        self._count("failed")
        self._settler.fail(work, finish.error, finish.delay)
        self._over([work])

    def _defer(self, work: Work, delay: float) -> None:
        """It comes again: this delivery, or the copy that the ledger has put into the outbox."""
        if not self._native_delay:
            self._ack([work], "deferred")
            return
        self._count("deferred")
        self._settler.release([work], delay)
        self._over([work])

    def _ack(self, works: Sequence[Work], counted: str) -> None:
        self._count(counted, len(works))
        self._settler.ack(works)
        self._over(works)

    def _give_up(self, work: Work, reason: str, attempts: int | None = None) -> None:
        _log.error("dead letter %s: %s", work, reason)
        self._count("dead")
        self._settler.dead_letter(work, reason, attempts)
        self._over([work])

    def _over(self, works: Sequence[Work]) -> None:
        """The work has left this process: others may pass the gates that it passed."""
        for work in works:
            if work.gates:
                self._buffer.leave(work)

    def _count(self, name: str, number: int = 1) -> None:
        with self._counting:
            self._counts[name] += number


def _exhausted(end: Exhausted | Dead) -> str:
    return f"given up after {end.attempts} attempt{'s' if end.attempts > 1 else ''}: {end.last_error}"
