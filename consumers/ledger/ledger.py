"""The ledger of one worker process: which attempt of which key may run, and how it ended.

There is no sweeper. A row whose lease has run out is taken over by the redelivery of its message, which its queue keeps until the outcome is
stored (an SQL queue by its own lease, a broker because the delivery was never acked): no one's row, no worker's table and no task is needed
for it. Until then `postroom status` shows it as running under a lease that has run out.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from typing import TYPE_CHECKING, TypeVar

from postroom.adapters import text
from postroom.adapters.errors import ConfigurationError, LeaseLost, Unavailable
from postroom.adapters.seam import retries_of
from postroom.adapters.sql.transaction import transact
from postroom.outbox.holdups import Holdup, hold_up, let_go, revive
from postroom.outbox.rows import insert_rows

from .answers import RunningElsewhere, Started
from .bounds import MOST_LOCK_WAIT, Blocked, bounded
from .decide import abandon, tally
from .entry import Holder
from .giving_up import give_up
from .locked import Locked
from .recordset import document
from .round import HELD_NOW, Round, copy_of
from .statements import DISCARD, DISCARDED, FINISH, HELD, LOCK_BY_WORKER, LOCK_HELD, OLD, PURGE, RENEW, RETRY
from .tables import MAX_WORKER

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from sqlalchemy import Connection, Engine

    from .answers import Abandoned, Answer, Claim, Done, Finish, Result
    from .decide import Mark

__all__ = ["Ledger"]

Outcome = TypeVar("Outcome")

_BLOCKED = f"another transaction has held rows of the ledger for more than {MOST_LOCK_WAIT} s"

_DOUBTS = 100
"""How many rounds without an answer are remembered: far more than can happen within a lease."""


def _new_fence() -> int:
    return secrets.randbits(62)


class Ledger:
    """Thread-safe. `worker` names this process and no other, ever; `lease` is in seconds; `native_delay` is the broker's capability.

    Every method is a transaction of its own unless it takes a connection, and raises Unavailable, AccessDenied or SchemaDrift when the
    database can't do it; nothing is known to be changed then, and the same call may be made again.
    """

    def __init__(self, engine: Engine, *, worker: str, lease: float, native_delay: bool, new_fence: Callable[[], int] = _new_fence) -> None:
        if not lease > 0:
            raise ConfigurationError(f"the ledger's lease must be more than 0 seconds, not {lease!r}")
        if not 0 < len(worker) <= MAX_WORKER:
            raise ConfigurationError(f"the worker's name must have 1 to {MAX_WORKER} characters, not {len(worker)}")
        self._engine = engine
        self._worker = worker
        self._lease = lease
        self._native_delay = native_delay
        self._new_fence = new_fence
        self._doubtful: deque[int] = deque(maxlen=_DOUBTS)
        self._held: set[tuple[int, int]] = set()
        self._lock = threading.Lock()  # guards the two above, never held while the database is asked

    def round(self, finishes: Sequence[Finish], claims: Sequence[Claim]) -> tuple[list[Result], list[Answer]]:
        """Store all finishes, then answer all claims, in one transaction: one result for each finish and one answer for each claim, in order.

        Blocks for a commit; for about two seconds longer when another process stalls while it begins one of these keys (then that claim, and no
        other, is answered RunningElsewhere). After Unavailable hand in the same finishes again: those that were stored have the same result.
        """
        try:
            return self._round(finishes, claims)
        except Blocked:
            return self._settle_alone(finishes), self._begin_each(claims)

    def finish_within(self, connection: Connection, finish: Done) -> None:
        """Store `finish` in the caller's transaction, so that it commits with the handler's effects and outgoing jobs, or not at all.

        Raises LeaseLost when the attempt is not the holder any more: the caller must roll back.
        """
        started = finish.started
        self._forget([(started.id, started.fence)])
        if not connection.execute(FINISH, {"row_id": started.id, "row_fence": started.fence}).rowcount:
            raise LeaseLost(f"attempt {started.attempt} (ledger row {started.id}) is not the holder any more: its effects must be rolled back")
        insert_rows(connection, [dict(row) for row in finish.outgoing])
        let_go(connection, [started.holdup] if started.holdup else ())

    def renew(self) -> Collection[tuple[int, int]]:
        """Extend the lease of each attempt that this process runs; return the (id, fence) pairs that it believed to hold and doesn't, once each.

        What it began and lost sight of is not among them: that lease runs out, and another process begins it. Call it from a thread of its own at
        least three times in a lease. Waits for no lock.
        """
        with self._lock:
            believed = set(self._held)
        if not believed:
            return ()
        still = self._transact(lambda connection: self._renew(connection, believed))
        with self._lock:
            lost = (believed & self._held) - still
            self._held -= lost
        return lost

    def abandon(self, worker: str, marks: Mapping[tuple[int, int], Mark]) -> Abandoned:
        """Give up the attempts of a process that is known to be dead; `marks` say which of them had started and ended. Safe to repeat."""
        return self._transact(lambda connection: self._abandon(connection, worker, marks))

    def retry(self, row_id: int, *, replays: int) -> bool:
        """An operator's replay: failed -> pending with a clean budget and `replays` + 1, if it is still failed and was replayed so often.

        False, and nothing changed, otherwise, also when it was discarded: so it is safe to repeat.
        A message must then carry the row's new number of replays.
        """
        return self._transact(lambda connection: connection.execute(RETRY, {"row_id": row_id, "old_replays": replays}).rowcount == 1)

    def discard(self, row_id: int, *, job: str, replays: int, note: str, holdup: Holdup | None = None) -> bool:
        """An operator's discard of `job`: its row keeps the `note` as its last error, and its key is free for another job, whatever its payload.

        Its `holdup` ends with it. False, and nothing changed, when the row is not failed any more, or was replayed or discarded since: so it is
        safe to repeat.
        """
        values = {"row_id": row_id, "old_replays": replays, "note": text.bounded(note)}
        return self._transact(lambda connection: _discard(connection, job, values) and _ended(connection, holdup))

    def let_go(self, job: Holdup) -> bool:
        """A person has given this job up for good, or its work is done otherwise: it holds up its ordering key no more. Return whether it did."""
        return self._transact(lambda connection: let_go(connection, _both(job)))

    def revive(self, job: Holdup) -> None:
        """A job that was given up is on its way again: if it holds up its ordering key, it is lost no more. Safe to repeat."""
        if not self._native_delay:
            self._transact(lambda connection: revive(connection, _both(job)))

    def give_up(self, job: str, *, queue: str, stamp: tuple[int, int], note: str, holdup: Holdup | None = None) -> bool:
        """An operator's discard of a `job` that waits in `queue` for a message that is lost, or that is the letter in the operator's hand.

        Its `holdup` ends with it. See `postroom.consumers.ledger.giving_up`.
        """
        return self._transact(lambda connection: give_up(connection, job=job, queue=queue, stamp=stamp, note=note) > 0 and _ended(connection, holdup))

    def purge(self, *, older_than: float, limit: int = 1000) -> int:
        """Remove up to `limit` rows that ended more than `older_than` seconds ago; return how many. Call it until it returns less."""
        return self._transact(lambda connection: _purge(connection, older_than, limit))

    def _round(self, finishes: Sequence[Finish], claims: Sequence[Claim]) -> tuple[list[Result], list[Answer]]:
        ending = [(finish.started.id, finish.started.fence) for finish in finishes]
        self._forget(ending)
        holder = self._holder()
        try:
            results, answers = transact(self._engine, lambda connection: self._work(connection, holder, finishes, claims))
        except BaseException as error:
            with self._lock:
                self._doubtful.append(holder.fence)
                if isinstance(error, Unavailable | Blocked):  # the same finishes come again
                    self._held.update(ending)
            raise
        with self._lock:
            self._held.update(_begun(answers))
        return results, answers

    def _work(self, connection: Connection, holder: Holder, finishes: Sequence[Finish], claims: Sequence[Claim]) -> tuple[list[Result], list[Answer]]:
        with bounded(connection):
            return Round(connection, holder, native_delay=self._native_delay).run(finishes, claims)

    def _settle_alone(self, finishes: Sequence[Finish]) -> list[Result]:
        """Store the finishes of a round that was blocked. Raises Unavailable when it was they that were blocked."""
        try:
            return self._round(finishes, ())[0] if finishes else []
        except Blocked as blocked:
            raise Unavailable(_BLOCKED) from blocked

    def _begin_each(self, claims: Sequence[Claim]) -> list[Answer]:
        answers: list[Answer] = []
        try:
            for claim in claims:
                answers.append(self._begin_alone(claim))  # noqa: PERF401 - those before one that raises must be known
        except BaseException:
            self._disown(answers)
            raise
        return answers

    def _begin_alone(self, claim: Claim) -> Answer:
        """Begin one claim of a round that was blocked; who blocks it is just beginning its key."""
        try:
            _, answers = self._round((), [claim])
        except Blocked:
            answer = RunningElsewhere(retry_in=HELD_NOW)
            if not self._native_delay:
                transact(self._engine, lambda connection: _defer(connection, claim, answer.retry_in))
            return answer
        return answers[0]

    def _renew(self, connection: Connection, believed: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
        """Return which of these it holds. A row that a round has locked is left out: it needs no longer lease, and waiting could be mutual."""
        mine = {"rows": document({"id": row_id, "fence": fence} for row_id, fence in sorted(believed))}
        ids = list(connection.execute(LOCK_HELD, mine).scalars())
        if ids:
            connection.execute(RENEW, {"ids": ids, "lease": self._lease})
        return {(row_id, fence) for row_id, fence in connection.execute(HELD, mine)}

    def _abandon(self, connection: Connection, worker: str, marks: Mapping[tuple[int, int], Mark]) -> Abandoned:
        locked = Locked(connection.execute(LOCK_BY_WORKER, {"worker": worker}))
        running = sum(mark == "running" for mark in marks.values())
        for entry in locked:
            locked.change(abandon(entry, marks.get((entry.id, entry.fence)), locked.now, running=running))
        locked.store(connection)
        return tally(locked.changes)

    def _transact(self, work: Callable[[Connection], Outcome]) -> Outcome:
        def patiently(connection: Connection) -> Outcome:
            with bounded(connection):
                return work(connection)

        try:
            return transact(self._engine, patiently)
        except Blocked as blocked:
            raise Unavailable(_BLOCKED) from blocked

    def _holder(self) -> Holder:
        with self._lock:
            doubtful = frozenset(self._doubtful)
        return Holder(worker=self._worker, fence=self._new_fence(), lease=self._lease, doubtful=doubtful)

    def _disown(self, answers: Iterable[Answer]) -> None:
        """Doubt what was begun and will not be run, because the caller never gets these answers."""
        begun = _begun(answers)
        self._forget(begun)
        with self._lock:
            self._doubtful.extend(fence for _, fence in begun)

    def _forget(self, attempts: Iterable[tuple[int, int]]) -> None:
        """Stop watching attempts that have ended: whether they still held is told by their finish."""
        with self._lock:
            self._held.difference_update(attempts)


def _ended(connection: Connection, holdup: Holdup | None) -> bool:
    let_go(connection, _both(holdup) if holdup else ())
    return True


def _both(job: Holdup) -> list[Holdup]:
    """Where its queue is another program's, its copies are in the one beside it."""
    return [job, job._replace(queue=retries_of(job.queue))]


def _begun(answers: Iterable[Answer]) -> list[tuple[int, int]]:
    return [(answer.id, answer.fence) for answer in answers if isinstance(answer, Started)]


def _defer(connection: Connection, claim: Claim, delay: float) -> None:
    insert_rows(connection, [copy_of(claim, copy=claim.envelope.copy, delay=delay)])
    hold_up(connection, [claim.holdup] if claim.ordered else ())


def _discard(connection: Connection, job: str, values: Mapping[str, object]) -> bool:
    if not connection.execute(DISCARD, values).rowcount:
        return False
    connection.execute(DISCARDED, {"job": job, "note": values["note"]})
    return True


def _purge(connection: Connection, older_than: float, limit: int) -> int:
    ids = list(connection.execute(OLD, {"older_than": older_than, "at_most": limit}).scalars())
    return connection.execute(PURGE, {"ids": ids, "older_than": older_than}).rowcount if ids else 0
