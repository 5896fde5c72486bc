"""Replaying dead letters: what is meant is fixed at the start, one goes first and is watched, and no job is replayed twice.

    ledger: failed ──retry, fenced on `replays`──▶ pending     then     letter ──put back──▶ queue

Killed between the two steps: the next run finds the ledger's row pending and the letter still there, and does the second step only; a discard ends
the row. Of a lost letter, both are one transaction: there is nothing between them.
Killed within the second step: a broker may hold the message twice; to the ledger that is one attempt, and it lets one of them run.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, select

from postroom.adapters.sql.engine import reading
from postroom.adapters.sql.transaction import translated
from postroom.outbox.envelope import COPY, REPLAYS
from postroom.outbox.holdups import Holdup
from postroom.outbox.tables import outbox

from .entries import owner
from .letters import ParkedPlace, Revival, behind
from .lost import LostPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import Engine

    from postroom.adapters.seam import Header

    from .ledger import Ledger
    from .ledger.entry import Entry
    from .letters import Letter, Place

__all__ = ["Fate", "Marked", "Replay", "Unproven", "mark"]

POLL = 0.2
BATCH, BATCH_BYTES = 100, 4 * 1024 * 1024
"""The most letters that are put back together, and of their payloads: one that is larger goes alone."""

_PARKED = select(outbox.c.status, outbox.c.last_error).where(outbox.c.seq == bindparam("seq"))


class Fate(Enum):
    """What became of one letter."""

    REPLAYED = "replayed"
    """On its way again."""
    GONE = "gone"
    """Not a dead letter any more, or replayed or discarded by someone else since this run began: left alone."""
    DONE = "already done"
    """The work of its key has been done by now: the letter was removed."""
    LOST = "lost"
    """Its letter is gone, and the outbox has its message no more: it can only be discarded."""
    CONFLICT = "in conflict"
    """Its key belongs to a job with another payload, which would refuse it again: left where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """A letter that is meant, as it and its ledger row were when the replay began. Its payload is left behind."""

    place: Place
    id: str
    message_id: str
    job: str
    type: str
    key: str
    ordering_key: str
    digest: str
    size: int
    replays: int
    entry: Entry | None
    is_lost: bool
    lacking: Mapping[str, Header]
    """The headers of its envelope that the message itself has not: those of another producer's message have none."""


class Unproven(Exception):
    """The letter that went first failed again, or was not finished in time: no other was replayed."""

    def __init__(self, marked: Marked, why: str) -> None:
        super().__init__(why)
        self.marked = marked


def mark(engine: Engine, found: Iterable[tuple[Place, Letter]]) -> Sequence[Marked]:
    """Fix what is meant: what dies again later is not meant by this run. Reads all letters once, keeps about 500 bytes of each."""
    return [_mark(engine, place, letter) for place, letter in found]


def _mark(engine: Engine, place: Place, letter: Letter) -> Marked:
    known = letter.envelope
    entry = owner(engine, key=known.key, type=known.type, queue=letter.queue) if known and letter.source != ParkedPlace.source else None
    return Marked(
        place=place,
        id=letter.id,
        message_id=letter.message.id,
        job=known.id if known else "",
        type=known.type if known else "",
        key=known.key if known else "",
        ordering_key=known.ordering_key if known else "",
        digest=letter.digest,
        size=len(letter.message.body),
        replays=known.replays if known else 0,
        entry=entry,
        is_lost=letter.is_lost,
        lacking={name: value for name, value in known.to_headers().items() if name not in letter.message.headers} if known else {},
    )


def _batches(meant: Iterable[Marked]) -> Iterator[Sequence[Marked]]:
    """Neighbours in one place, so many as go together."""
    batch: list[Marked] = []
    for marked in meant:
        if batch and (marked.place is not batch[0].place or len(batch) == BATCH or sum(one.size for one in batch) + marked.size > BATCH_BYTES):
            yield batch
            batch = []
        batch.append(marked)
    if batch:
        yield batch


def _alive(marked: Marked, before: Entry, entry: Entry) -> Fate | Revival:
    """Of a row that is failed still, or pending or running by this replay or by one that was cut short. Gone when it has lived on since."""
    if entry.status == "failed" == before.status and entry.replays == before.replays:
        return _revival(marked, {REPLAYS: entry.replays + 1, COPY: 0}, is_known=True, failed=(entry.id, entry.replays))
    alive = before.replays + (before.status == "failed")
    if entry.status == "failed" or entry.replays != alive:
        return Fate.GONE
    return _revival(marked, {REPLAYS: entry.replays, COPY: entry.copy}, is_known=True)


def _revival(marked: Marked, numbers: Mapping[str, Header], **known: Any) -> Revival:  # noqa: ANN401 - the fields of a Revival
    if not marked.key:
        return Revival(headers={})
    return Revival(headers={**marked.lacking, **numbers}, holdup=Holdup(marked.place.queue, marked.ordering_key, marked.job), **known)


class Replay:
    """One operator's replay of marked letters. `clock` and `sleep` are in seconds."""

    def __init__(
        self,
        engine: Engine,
        ledger: Ledger,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._engine = engine
        self._ledger = ledger
        self._clock = clock
        self._sleep = sleep

    def run(self, meant: Sequence[Marked], *, progress: Callable[[int], None], canary: float | None = None) -> Counter[Fate]:
        """Replay all that is `meant`, in order; with a `canary`, watch the first one for up to that many seconds before the others go.

        Raises Unproven when that first one fails again or is not finished in time. The others go together, so many as a small transaction takes;
        stop it anywhere. `progress` is told of each number of letters whose fate is certain.
        """
        fates: Counter[Fate] = Counter()

        def tell(fate: Fate, count: int) -> None:
            if count:
                fates[fate] += count
                progress(count)

        def replay(batch: Sequence[Marked]) -> None:
            before = fates.total()
            self._replay(batch, tell)
            tell(Fate.GONE, before + len(batch) - fates.total())

        first = 0
        while canary is not None and not fates[Fate.REPLAYED] and first < len(meant) - 1:
            first += 1
            replay(meant[first - 1 : first])
        if canary is not None and fates[Fate.REPLAYED]:
            self._watch(meant[first - 1], meant, canary)
        for batch in _batches(meant[first:]):
            replay(batch)
        return fates

    def _replay(self, batch: Sequence[Marked], tell: Callable[[Fate, int], None]) -> None:
        """Replay letters of one place; `tell` how many have which fate once that is certain, but for those that are gone."""
        place, decided = batch[0].place, {marked.id: self._decide(marked) for marked in batch}
        back = {letter: what for letter, what in decided.items() if isinstance(what, Revival)}
        for fate in (Fate.LOST, Fate.CONFLICT):
            tell(fate, sum(what is fate for what in decided.values()))
        if done := [letter for letter, what in decided.items() if what is Fate.DONE]:
            tell(Fate.DONE, len(place.remove(done, "its work is done")))
        while back and (went := place.put_back(back)):
            tell(Fate.REPLAYED, len(went))
            back = {letter: revival for letter, revival in back.items() if letter not in went}

    def _decide(self, marked: Marked) -> Fate | Revival:
        """The fate of a letter; if it is to go on its way, how, and the ledger knows of it already. What is lost, its place revives there, too."""
        found = self._fate(marked)
        if not isinstance(found, Revival) or isinstance(marked.place, LostPlace):
            return found
        if found.failed and not self._ledger.retry(found.failed[0], replays=found.failed[1]):
            return self._decide(marked)  # someone else was quicker
        if found.holdup:
            self._ledger.revive(found.holdup)
        return found

    def _fate(self, marked: Marked) -> Fate | Revival:
        """See `_decide`; as the ledger is now."""
        if marked.is_lost:
            return Fate.LOST
        before, entry = marked.entry, self._look(marked)
        if before is None or entry is None:
            return _revival(marked, {REPLAYS: max(marked.replays, before.replays if before else 0) + 1})
        if entry.is_free:  # before this run: a discard of this letter was cut short
            return _revival(marked, {REPLAYS: max(marked.replays, entry.replays) + 1}) if before.is_free else Fate.GONE
        if entry.digest != marked.digest:
            return Fate.CONFLICT
        if entry.status == "done":
            self._ledger.let_go(Holdup(marked.place.queue, marked.ordering_key, marked.job))
            return Fate.DONE
        return _alive(marked, before, entry)

    def _look(self, marked: Marked) -> Entry | None:
        before = marked.entry
        return owner(self._engine, key=before.key, type=before.type, queue=before.queue) if before else None

    def _watch(self, marked: Marked, meant: Sequence[Marked], patience: float) -> None:
        deadline = self._clock() + patience
        while unfinished := self._unfinished(marked, meant):
            if self._clock() >= deadline:
                raise Unproven(marked, f"it was not finished within {patience:g} s: {unfinished}")
            self._sleep(POLL)

    def _unfinished(self, marked: Marked, meant: Sequence[Marked]) -> str:
        """What it still waits for, nothing when it is done. Raises Unproven when it has failed again."""
        if marked.place.source == ParkedPlace.source:
            return self._unsent(marked)
        entry = owner(self._engine, key=marked.key, type=marked.type, queue=marked.place.queue)
        if entry is None or entry.is_free:
            return self._unbegun(marked, meant)
        if entry.status == "failed":
            raise Unproven(marked, f"it failed again: {entry.last_error}")
        if entry.status == "done":
            return ""
        return f"{entry.status}, {entry.attempts} of {entry.max_attempts} attempts failed" + (f" ({entry.last_error})" if entry.attempts else "")

    def _unsent(self, marked: Marked) -> str:
        with translated(self._engine), reading(self._engine).connect() as connection:
            row = connection.execute(_PARKED, {"seq": int(marked.id)}).one_or_none()
        if row is not None and row.status == "parked":
            raise Unproven(marked, f"the broker refused it again: {row.last_error}")
        return "no relay has sent it" if row is not None and row.status == "pending" else ""

    def _unbegun(self, marked: Marked, meant: Sequence[Marked]) -> str:
        """A message that no handler takes comes back without ever having been in the ledger."""
        known = [other.id for other in meant if other.place is marked.place and other is not marked]
        for letter in behind(marked.place, known[-1] if known else None):
            if letter.message.id == marked.message_id:
                raise Unproven(marked, f"it came back: {letter.error}")
        return "no worker has begun it"
