"""The jobs that were given up: found, looked at, discarded. One code for every backend, and for the outbox's parked rows beside them."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from postroom.adapters.errors import ConfigurationError
from postroom.adapters.seam import retries_of
from postroom.adapters.sql.transaction import transact
from postroom.adapters.text import bounded
from postroom.outbox.holdups import Holdup

from .entries import owner
from .ledger import Ledger
from .ledger.statements import DISCARDED as REMEMBER
from .letters import DISCARDED, Letter, ParkedPlace, Place, QueuePlace, behind, envelope_of
from .lost import LostPlace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from sqlalchemy import Engine

    from postroom.adapters.seam import Adapter, DeadLetters, Queue
    from postroom.outbox.envelope import Envelope

    from .ledger.entry import Entry

__all__ = [
    "DISCARDED",
    "Group",
    "Letter",
    "ParkedPlace",
    "Place",
    "QueuePlace",
    "Selection",
    "as_seen",
    "behind",
    "carriers_of",
    "discarded",
    "grouped",
    "letters",
    "places",
]


Seen: TypeAlias = "tuple[Place, Letter, Entry | None]"
"""A letter that is meant, and its row of the ledger as it was then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which letters are meant: those that match everything said here. `names` are ids of letters or jobs, or keys; `error` is a part of theirs."""

    names: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()
    error: str = ""
    limit: int | None = None

    def matches(self, letter: Letter) -> bool:
        """Whether this letter is meant, the limit aside."""
        return (
            (not self.names or not self.names.isdisjoint(letter.names))
            and (not self.types or (letter.envelope is not None and letter.envelope.type in self.types))
            and self.error.lower() in letter.error.lower()
        )


def places(
    engine: Engine, adapter: Adapter, carriers: Iterable[str], *, parked_for: Iterable[str] = (), names: Collection[str] = ()
) -> Sequence[Place]:
    """The dead letters of these carriers, what is lost of them, and the outbox's parked rows `parked_for` these queues (all when empty).

    `names` are those of the jobs that are looked for: more can be found lost of them.
    """
    dead = [QueuePlace(carrier, _dead_letters(adapter, carrier), engine) for carrier in carriers]
    lost = [LostPlace(engine, place.queue, [place, *_beside(engine, adapter, place.queue)], names) for place in dead]
    return [*dead, *lost, *(ParkedPlace(engine, queue) for queue in tuple(parked_for) or (None,))]


def _beside(engine: Engine, adapter: Adapter, carrier: str) -> Sequence[QueuePlace]:
    """The dead letters of another program's queue, for the carrier that has Postroom's own messages about it."""
    others = carrier.removesuffix(retries_of(""))
    with suppress(ConfigurationError):
        return [QueuePlace(others, adapter.dead_letters(others), engine)] if others != carrier else []
    return []


def _dead_letters(adapter: Adapter, carrier: str) -> DeadLetters:
    try:
        return adapter.dead_letters(carrier)
    except ConfigurationError as error:
        known = ", ".join(adapter.carriers()) or "none"
        raise ConfigurationError(f"the broker knows no queue {carrier!r} (it tells of: {known}); `postroom declare ...` declares them") from error


def carriers_of(name: str, known: Sequence[str], declared: Collection[Queue] = ()) -> Sequence[str]:
    """The queues on the broker that a person means by `name`: a declared queue or topic, one of its carriers, or a dead-letter queue.

    `declared` tells what belongs together; without it the names that the broker knows do (`mails.high` to `mails`). What nobody knows is
    taken at its word.
    """
    for queue in declared:
        dead = [carrier for carrier in queue.carriers if name in {carrier, queue.dead_letter_of(carrier)}]
        if name == queue.name or dead:
            return dead or list(queue.carriers)
    if name in known:
        return [name]
    alive = name.removesuffix(".dlq")
    return [alive] if alive in known else [carrier for carrier in known if carrier.startswith(f"{alive}.")] or [name]


def as_seen(engine: Engine, found: Iterable[tuple[Place, Letter]]) -> Sequence[Seen]:
    """Fix what is to be discarded: each letter with its row of the ledger, read as the letter is."""
    return [(place, letter, _row_of(engine, letter)) for place, letter in found]


def discarded(engine: Engine, meant: Iterable[Seen], reason: str) -> Iterator[Letter]:
    """Discard letters for good, as they are asked for; yield each that this has ended. Ledger or outbox keep the reason, and the job's key is free.

    Where a job has lived on since it was seen, its letter stays and it holds its keys: a replay has it in hand.
    """
    ledger = Ledger(engine, worker="postroom dead discard", lease=30.0, native_delay=False)
    return (letter for place, letter, entry in meant if _discard(ledger, engine, place, letter, entry, reason))


def _row_of(engine: Engine, letter: Letter) -> Entry | None:
    """The ledger's row, if it is about this letter's job: a key may be another job's."""
    known = letter.envelope
    if known is None or letter.source == ParkedPlace.source:
        return None
    entry = owner(engine, key=known.key, type=known.type, queue=letter.queue)
    return entry if entry and (entry.job_id, entry.digest) == (known.id, letter.digest) else None


def _discard(ledger: Ledger, engine: Engine, place: Place, letter: Letter, entry: Entry | None, why: str) -> bool:
    """Where the ledger knows the job, it decides; else the letter does: whoever removes it, and not who puts it back, decides about its job."""
    if entry is None or entry.status == "done":
        return bool(place.remove([letter.id], why)) and _let_go(ledger, engine, letter, why)
    if _is_leftover(letter, entry):
        return entry.status == "failed" and bool(place.remove([letter.id], why))
    if not _end(ledger, letter, entry, why):
        return False
    place.remove([letter.id], why)  # what a replay has put back all the same is acked: its row has ended
    return True


def _let_go(ledger: Ledger, engine: Engine, letter: Letter, why: str) -> bool:
    """A job that no row of the ledger waits for. Of a key that another job owns, that job's row is left alone; the outbox keeps the reason."""
    known = letter.envelope
    if known is not None and letter.source != ParkedPlace.source:
        ledger.let_go(_holdup(letter, known))
        note = bounded(_note(why, letter.error))
        transact(engine, lambda connection: connection.execute(REMEMBER, {"job": known.id, "note": note}))
    return True


def _is_leftover(letter: Letter, entry: Entry) -> bool:
    """Whether another message of the job is its life, or its death, and not this letter, which a broker holds twice.

    A row that has waited for nothing but a replay since it failed has no other: its letter is not back yet, or that replay was cut short.
    """
    if letter.source == LostPlace.source:
        return False
    itself = envelope_of(letter.message)  # of another producer's message it is that which no handler has failed with
    stamp = (itself.replays, itself.copy) if itself else (0, 0)
    if entry.status == "failed":
        return entry.replays > stamp[0]
    return stamp != (entry.replays, entry.copy) and not (entry.replays > stamp[0] and entry.attempts == entry.copy == 0)


def _end(ledger: Ledger, letter: Letter, entry: Entry, why: str) -> bool:
    """End its row, as it was when it was meant, and what it holds up, in one transaction; False, and nothing changed, when it is not so any more."""
    known = letter.envelope
    if known is None:
        return False
    note, holdup = _note(why, entry.last_error or letter.error), _holdup(letter, known)
    if entry.status == "failed":
        return ledger.discard(entry.id, job=known.id, replays=entry.replays, note=note, holdup=holdup)
    return ledger.give_up(known.id, queue=entry.queue, stamp=(entry.replays, entry.copy), note=note, holdup=holdup)


def _holdup(letter: Letter, known: Envelope) -> Holdup:
    return Holdup(letter.queue, known.ordering_key, known.id)


def _note(why: str, error: str) -> str:
    return f"{DISCARDED}{why}; it was: {error}"


def letters(where: Iterable[Place], selection: Selection) -> Iterator[tuple[Place, Letter]]:
    """All letters of a selection, place by place, oldest first, read in pages as they are asked for."""
    meant = ((place, letter) for place in where for letter in behind(place) if selection.matches(letter))
    return islice(meant, selection.limit)


@dataclass(slots=True, kw_only=True)
class Group:
    """Letters with one error, numbers aside."""

    error: str
    count: int = 0
    types: Counter[str] = field(default_factory=Counter)
    first: float = float("inf")
    last: float = float("-inf")
    example: str = ""

    def add(self, letter: Letter) -> None:
        """Count one more."""
        self.count += 1
        self.types[letter.envelope.type if letter.envelope else "?"] += 1
        self.first, self.last = min(self.first, letter.died_at), max(self.last, letter.died_at)
        self.example = self.example or letter.id


_VARYING = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|\d+(?:\.\d+)?", re.IGNORECASE)


def grouped(found: Iterable[Letter]) -> Sequence[Group]:
    """Group letters by the first line of their error, its numbers and ids aside; the largest group first."""
    groups: dict[str, Group] = {}
    for letter in found:
        error = _VARYING.sub("…", letter.error.partition("\n")[0])
        groups.setdefault(error, Group(error=error)).add(letter)
    return sorted(groups.values(), key=lambda group: -group.count)
