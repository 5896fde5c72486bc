"""The jobs that were given up: found, looked at, discarded. One code for every backend, and for the outbox's parked rows beside them."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from postroom.adapters.errors import ConfigurationError
from postroom.adapters.seam import retries_of
from postroom.adapters.sql.transaction import transact
from postroom.adapters.text import bounded
from postroom.outbox.holdups import Holdup

from .entries import owner
from .ledger import Ledger
from .ledger.statements import DISCARDED as REMEMBER
from .letters import DISCARDED, Letter, ParkedPlace, Place, QueuePlace, behind
from .lost import LostPlace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from sqlalchemy import Engine

    from postroom.adapters.seam import Adapter, DeadLetters, Queue

__all__ = [
    "DISCARDED",
    "Group",
    "Letter",
    "ParkedPlace",
    "Place",
    "QueuePlace",
    "Selection",
    "behind",
    "carriers_of",
    "discarded",
    "grouped",
    "letters",
    "places",
]


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


def discarded(engine: Engine, found: Iterable[tuple[Place, Letter]], reason: str) -> Iterator[Letter]:
    """Remove letters for good, as they are asked for; yield each that was there. Ledger or outbox keep the reason, and the job's key is free."""
    ledger = Ledger(engine, worker="postroom dead discard", lease=30.0, native_delay=False)
    for place, letter in found:
        was_held = _note(ledger, engine, letter, reason)
        if place.remove([letter.id], reason) or (was_held and letter.source == LostPlace.source):
            yield letter


def _note(ledger: Ledger, engine: Engine, letter: Letter, why: str) -> bool:
    """Where its row, or else the outbox's, can tell who asks for the job later. Of a key that another job owns, that job's row is left alone.

    Return whether the job has held its key, or its ordering key, until now.
    """
    known = letter.envelope
    if known is None or letter.source == ParkedPlace.source:
        return False
    was_first = ledger.let_go(Holdup(letter.queue, known.ordering_key, known.id))
    entry = owner(engine, key=known.key, type=known.type, queue=letter.queue)
    mine = entry if entry and (entry.job_id, entry.digest) == (known.id, letter.digest) else None
    note = f"{DISCARDED}{why}; it was: {mine.last_error if mine else letter.error}"
    if mine and ledger.discard(mine.id, job=known.id, replays=mine.replays, note=note):
        return True
    if mine and letter.source == LostPlace.source and ledger.give_up(known.id, queue=mine.queue, stamp=(mine.replays, mine.copy), note=note):
        return True
    transact(engine, lambda connection: connection.execute(REMEMBER, {"job": known.id, "note": bounded(note)}))
    return was_first


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
