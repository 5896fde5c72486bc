"""A round: the finishes and the claims of many lanes in one transaction of few statements, in this order.

0. Whom the claims on ordered queues have to wait for, if the broker can't keep a retry in its place. Nothing for other claims.
1. All keys that have no row are begun in one INSERT: the unique constraint is the check, so of two that race one begins.
2. `done` for all that are done, in one UPDATE that says which rows it found.
3. The other finishes, and those that 2 has missed: lock the rows, decide, store.
4. Claims on keys that have a row: lock the rows, decide, store. A row that another transaction holds at this moment is not waited for.
5. The outbox rows of all of these: jobs that handlers enqueued, retries, deferred copies; and who holds up its ordering key from now on, or no more.

When all goes well, that is 1 and 2. Rounds can't wait for each other in a circle: an INSERT waits for other inserts in the order of the keys, and for
whoever is changing a row of its keys, who is past his own INSERT; finishes wait for rows that this worker holds itself; 4 waits for nobody.
(On MySQL 1 is a look, an INSERT and another look, and 2 is part of 3.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from postroom.outbox.holdups import hold_up, let_go
from postroom.outbox.rows import build_row, insert_rows

from .answers import AlreadyDone, Dead, Done, Failed, Finished, Later, RunningElsewhere, Started, Waiting
from .decide import begin_in_turn, given_up, holds_up, is_held_up, may_begin_unseen, settle
from .locked import Locked
from .recordset import document
from .statements import ADDRESS, FINISH_MANY, FIRST_HOLDUPS, INSERT_ABSENT, INSERT_EACH, INSERTED, LOCK_BY_ADDRESS, LOCK_BY_ID, NOW, READ_BY_ADDRESS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy import Connection, Select

    from postroom.outbox.holdups import Holdup
    from postroom.outbox.rows import NewRow

    from .answers import Answer, Claim, Finish, Result
    from .entry import Entry, Holder
    from .locked import Address

__all__ = ["HELD_NOW", "Round", "copy_of"]

_ADDRESS = tuple(column.name for column in ADDRESS)

HELD_NOW = 1.0
"""When to look again (seconds) at a key whose row another transaction is just changing."""


class Round:
    """One round in one open transaction, which the caller commits."""

    def __init__(self, connection: Connection, holder: Holder, *, native_delay: bool) -> None:
        self._connection = connection
        self._holder = holder
        self._native_delay = native_delay
        self._outgoing: list[NewRow] = []
        self._firsts: Mapping[tuple[str, str], str | None] = {}
        self._held_up: list[Holdup] = []
        self._given_up: dict[Holdup, str] = {}
        self._let_go: list[Holdup] = []
        self._returns = connection.dialect.update_returning

    def run(self, finishes: Sequence[Finish], claims: Sequence[Claim]) -> tuple[list[Result], list[Answer]]:
        """Store what ended, and answer each claim as it is after that; both in order. Of two claims on one new key the first is begun."""
        self._firsts = self._look_ahead([claim.holdup for claim in claims if claim.ordered])
        answers: dict[int, Answer] = {place: Later() for place, claim in enumerate(claims) if not may_begin_unseen(claim)}
        answers |= self._begin_new({place: claim for place, claim in enumerate(claims) if not (place in answers or self._is_held_up(claim))})
        results = self._settle_all(finishes)
        answers |= self._begin_known({place: claim for place, claim in enumerate(claims) if place not in answers})
        ordered = [answers[place] for place in range(len(claims))]
        if not self._native_delay:
            self._defer(claims, ordered)
            ordered = [self._in_order(claim, answer) for claim, answer in zip(claims, ordered, strict=True)]
        insert_rows(self._connection, self._outgoing)
        hold_up(self._connection, self._held_up, self._given_up)
        let_go(self._connection, self._let_go)
        return results, ordered

    def _look_ahead(self, asked: Sequence[Holdup]) -> Mapping[tuple[str, str], str | None]:
        """The first holdup of each queue and ordering key."""
        if self._native_delay or not asked:
            return {}
        given = document({"queue": queue, "ordering_key": key} for queue, key, _ in asked)
        return {(queue, key): first for queue, key, first in self._connection.execute(FIRST_HOLDUPS, {"rows": given})}

    def _first_of(self, claim: Claim) -> str | None:
        return self._firsts.get(claim.holdup[:2]) if claim.ordered else None

    def _is_held_up(self, claim: Claim) -> bool:
        return is_held_up(claim, self._first_of(claim))

    def _in_order(self, claim: Claim, answer: Answer) -> Answer:
        """Note what the answer to a claim means for the later jobs of its ordering key."""
        if not claim.ordered:
            return answer
        if holds_up(answer):
            self._held_up.append(claim.holdup)
            if (why := given_up(claim, answer)) is not None:
                self._given_up[claim.holdup] = why
        elif isinstance(answer, AlreadyDone):
            self._let_go.append(claim.holdup)
        elif isinstance(answer, Started) and self._first_of(claim) == claim.envelope.id:
            return replace(answer, holdup=claim.holdup)
        return answer

    def _settle_all(self, finishes: Sequence[Finish]) -> list[Result]:
        stored = self._finish_many([finish for finish in finishes if isinstance(finish, Done)])
        late = iter(self._settle_each([finish for finish in finishes if _attempt_of(finish) not in stored]))
        return [Finished() if _attempt_of(finish) in stored else next(late) for finish in finishes]

    def _finish_many(self, finishes: Sequence[Done]) -> set[tuple[int, int]]:
        """Store the attempts that are done and still hold; return them. None on MySQL, which could not say which they were."""
        if not finishes or not self._returns:
            return set()
        given = document({"id": finish.started.id, "fence": finish.started.fence} for finish in finishes)
        stored = {(row_id, fence) for row_id, fence in self._connection.execute(FINISH_MANY, {"rows": given}).all()}
        self._outgoing += [dict(row) for finish in finishes if finish.outgoing and _attempt_of(finish) in stored for row in finish.outgoing]
        self._let_go += [finish.started.holdup for finish in finishes if finish.started.holdup and _attempt_of(finish) in stored]
        return stored

    def _settle_each(self, finishes: Sequence[Finish]) -> list[Result]:
        if not finishes:
            return []
        given = document({"id": finish.started.id} for finish in finishes)
        locked = Locked(self._connection.execute(LOCK_BY_ID, {"rows": given}))
        results = [self._settle(locked, finish) for finish in finishes]
        locked.store(self._connection)
        return results

    def _settle(self, locked: Locked, finish: Finish) -> Result:
        result, after = settle(locked.get(finish.started.id), finish, locked.now, native_delay=self._native_delay)
        if after is not None:
            locked.change(after)
            self._outgoing += self._consequences(finish, after)
            self._hold_or_let_go(finish, result)
        return result

    def _hold_or_let_go(self, finish: Finish, result: Result) -> None:
        if isinstance(finish, Done) and finish.started.holdup:
            self._let_go.append(finish.started.holdup)
        elif isinstance(finish, Failed) and finish.claim.ordered and not self._native_delay:
            self._held_up.append(finish.claim.holdup)
            if isinstance(result, Dead):
                self._given_up[finish.claim.holdup] = result.last_error

    def _consequences(self, finish: Finish, after: Entry) -> list[NewRow]:
        """The outbox rows that must be there if, and only if, the finish is stored."""
        if isinstance(finish, Done):
            return [dict(row) for row in finish.outgoing]
        if isinstance(finish, Failed) and after.status == "pending" and not self._native_delay:
            return [copy_of(finish.claim, copy=after.copy, delay=finish.delay)]
        return []

    def _begin_new(self, claims: Mapping[int, Claim]) -> dict[int, Answer]:
        first: dict[Address, int] = {}
        for place, claim in claims.items():
            first.setdefault(_address_of(claim), place)
        begun = self._insert_absent([claims[first[address]] for address in sorted(first)])
        return {first[address]: self._fresh(row_id, claims[first[address]]) for address, row_id in begun.items()}

    def _insert_absent(self, claims: Sequence[Claim]) -> dict[Address, int]:
        """Insert a running row for each key that has none; return the ids of the new rows."""
        if not claims:
            return {}
        inserted = self._insert_together(claims) if self._returns else self._insert_each(claims)
        return {(key, type_, group): row_id for row_id, key, type_, group in inserted}

    def _insert_together(self, claims: Sequence[Claim]) -> Sequence[Sequence[Any]]:
        holder = {"fence": self._holder.fence, "lease": self._holder.lease, "worker": self._holder.worker}
        return self._connection.execute(INSERT_ABSENT[self._connection.dialect.name], {"rows": document(map(_new_row, claims)), **holder}).all()

    def _insert_each(self, claims: Sequence[Claim]) -> Sequence[Sequence[Any]]:
        """For MySQL, whose INSERT can't say what it has inserted, and waits for rows that are only being changed: so it gets none that are there."""
        addresses = {_address_of(claim) for claim in claims}
        known = self._look(READ_BY_ADDRESS, addresses)
        now = self._connection.execute(NOW).scalar_one()
        begun = {
            "status": "running",
            "attempts": 0,
            "suspicions": 0,
            "fence": self._holder.fence,
            "taken_at": now,
            "lease_until": now + self._holder.lease,
            "worker": self._holder.worker,
        }
        new = [_new_row(claim) | begun for claim in claims if known.at(_address_of(claim)) is None]
        if not new:
            return []
        self._connection.execute(INSERT_EACH, new)
        return self._connection.execute(INSERTED, {"rows": document(map(_new_row, claims)), "fence": self._holder.fence}).all()

    def _fresh(self, row_id: int, claim: Claim) -> Started:
        return Started(id=row_id, fence=self._holder.fence, attempt=1, max_attempts=claim.max_attempts)

    def _begin_known(self, claims: Mapping[int, Claim]) -> dict[int, Answer]:
        if not claims:
            return {}
        addresses = {_address_of(claim) for claim in claims.values()}
        locked = self._look(LOCK_BY_ADDRESS, addresses)
        held = self._look(READ_BY_ADDRESS, {address for address in addresses if locked.at(address) is None})
        answers = {place: self._answer(locked, claim) or self._answer_unlocked(held, claim) for place, claim in claims.items()}
        locked.store(self._connection)
        return answers

    def _look(self, statement: Select[Any], addresses: Collection[Address]) -> Locked:
        if not addresses:
            return Locked(())
        given = document(dict(zip(_ADDRESS, address, strict=True)) for address in sorted(addresses))
        return Locked(self._connection.execute(statement, {"rows": given}))

    def _answer(self, locked: Locked, claim: Claim) -> Answer | None:
        entry = locked.at(_address_of(claim))
        if entry is None:
            return None
        verdict = begin_in_turn(entry, claim, self._holder, locked.now, held_up=self._is_held_up(claim))
        if verdict is None:
            return None
        if verdict.entry is not None:
            locked.change(verdict.entry)
        return verdict.answer

    def _answer_unlocked(self, held: Locked, claim: Claim) -> Answer:
        """Another transaction is changing the row: answer what changes nothing, else look again when it has ended."""
        entry = held.at(_address_of(claim))
        verdict = begin_in_turn(entry, claim, self._holder, held.now, held_up=self._is_held_up(claim))
        return verdict.answer if verdict is not None and verdict.entry is None else RunningElsewhere(retry_in=HELD_NOW)

    def _defer(self, claims: Sequence[Claim], answers: Sequence[Answer]) -> None:
        """Put the copies that must come back later into the outbox, so that their deliveries may be acked."""
        for claim, answer in zip(claims, answers, strict=True):
            if isinstance(answer, RunningElsewhere | Waiting):
                self._outgoing.append(copy_of(claim, copy=claim.envelope.copy, delay=answer.retry_in))


def _attempt_of(finish: Finish) -> tuple[int, int]:
    return finish.started.id, finish.started.fence


def _address_of(claim: Claim) -> Address:
    return claim.envelope.key, claim.envelope.type, claim.group


def _new_row(claim: Claim) -> dict[str, Any]:
    envelope = claim.envelope
    return {
        "key": envelope.key,
        "type": envelope.type,
        "group_name": claim.group,
        "job_id": envelope.id,
        "queue": claim.queue,
        "digest": claim.digest,
        "max_attempts": claim.max_attempts,
        "copy": envelope.copy,
        "replays": envelope.replays,
        "enqueued_at": envelope.enqueued_at,
        "redeliveries": claim.redeliveries,
    }


def copy_of(claim: Claim, *, copy: int, delay: float) -> NewRow:
    """Return the outbox row of the message of a claim once more, to the carrier it came from: to one group of a topic, not to all.

    Not into another program's queue: then it goes to the carrier beside it.
    """
    envelope = replace(claim.envelope, queue=claim.back or claim.queue, copy=copy)
    return build_row(envelope, claim.message.body, ordered=claim.ordered, delay=delay)
