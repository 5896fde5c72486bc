"""The jobs that were given up: found, looked at, discarded. One code for every backend, and for the outbox's parked rows beside them.

A *letter* is one such job, wherever it lies; a *place* is where letters lie: the dead letters of a carrier, or the parked rows of the outbox.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from postroom.adapters.errors import ConfigurationError, Undecodable
from postroom.adapters.sql.transaction import transact
from postroom.adapters.text import bounded
from postroom.outbox.envelope import Envelope, digest, read_envelope
from postroom.outbox.holdups import Holdup
from postroom.outbox.parked import Parked, ParkedRow

from .entries import owner
from .ledger import Ledger
from .ledger.statements import DISCARDED as REMEMBER
from .recognised import recognised

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import Engine

    from postroom.adapters.seam import Adapter, DeadLetter, DeadLetters, Header, Message, Queue

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

DISCARDED = "discarded: "
"""How the last error of a job begins that was given up for good."""

PAGE = 100
"""Letters read at a time: each has its payload with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One job that was given up. `id` names it in its place; `envelope` is None for a message that was never a job of Postroom's."""

    source: str
    queue: str
    id: str
    message: Message
    error: str
    attempts: int
    died_at: float
    envelope: Envelope | None

    @property
    def digest(self) -> str:
        """The fingerprint of its payload, as the ledger knows it."""
        return (self.envelope.mapped if self.envelope else None) or digest(self.message.body)

    @property
    def names(self) -> Collection[str]:
        """What a person may call it by."""
        return {self.id} | ({self.envelope.id, self.envelope.key} if self.envelope else set())


class Place(Protocol):
    """Where letters lie. All methods are safe to repeat."""

    source: str
    queue: str

    def page(self, after: str | None) -> Sequence[Letter]:
        """The next letters, oldest first, behind the one with id `after`."""

    def put_back(self, ids: Sequence[str], headers: Mapping[str, Header] | None) -> Sequence[str]:
        """Send these on their way again, `headers` laid over their own; return the ids of those that were there."""

    def remove(self, ids: Sequence[str], reason: str) -> Sequence[str]:
        """Remove these for good; return the ids of those that were there."""


class QueuePlace:
    """The dead letters of one carrier, on any backend. With an `engine` it knows those messages of other producers that were jobs, too."""

    source = "queue"

    def __init__(self, queue: str, dead: DeadLetters, engine: Engine | None = None) -> None:
        self.queue = queue
        self._dead = dead
        self._engine = engine

    def page(self, after: str | None) -> Sequence[Letter]:
        """See `Place`."""
        page = self._dead.list(limit=PAGE, after=after)
        known = recognised(self._engine, self.queue, [found.message for found in page]) if self._engine else {}
        return [self._letter(found, known.get(found.message.id)) for found in page]

    def put_back(self, ids: Sequence[str], headers: Mapping[str, Header] | None) -> Sequence[str]:
        """See `Place`."""
        return self._dead.put_back(ids, headers)

    def remove(self, ids: Sequence[str], reason: str) -> Sequence[str]:  # noqa: ARG002 - a broker keeps no reasons
        """See `Place`."""
        return [found.id for found in self._dead.take(ids)]

    def _letter(self, found: DeadLetter, known: Envelope | None) -> Letter:
        return Letter(
            source=self.source,
            queue=self.queue,
            id=found.id,
            message=found.message,
            error=found.reason,
            attempts=found.attempts,
            died_at=found.died_at,
            envelope=known or envelope_of(found.message),
        )


class ParkedPlace:
    """The parked rows of the outbox: those for one queue, or all."""

    source = "outbox"

    def __init__(self, engine: Engine, queue: str | None) -> None:
        self.queue = queue or ""
        self._parked = Parked(engine)

    def page(self, after: str | None) -> Sequence[Letter]:
        """See `Place`."""
        return [_of_parked(row) for row in self._parked.list(queue=self.queue or None, limit=PAGE, after=int(after or 0))]

    def put_back(self, ids: Sequence[str], headers: Mapping[str, Header] | None) -> Sequence[str]:  # noqa: ARG002 - the ledger has no part in it
        """See `Place`."""
        return [str(seq) for seq in self._parked.replay([int(id_) for id_ in ids])]

    def remove(self, ids: Sequence[str], reason: str) -> Sequence[str]:
        """See `Place`."""
        return [str(seq) for seq in self._parked.discard([int(id_) for id_ in ids], reason)]


def _of_parked(row: ParkedRow) -> Letter:
    return Letter(
        source=ParkedPlace.source,
        queue=row.message.queue,
        id=str(row.seq),
        message=row.message,
        error=row.reason,
        attempts=row.attempts,
        died_at=row.available_at,
        envelope=envelope_of(row.message),
    )


def envelope_of(message: Message) -> Envelope | None:
    """The envelope of a message, None where it has none that can be read."""
    try:
        return read_envelope(message)
    except Undecodable:
        return None


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


def places(engine: Engine, adapter: Adapter, carriers: Iterable[str], *, parked_for: Iterable[str] = ()) -> Sequence[Place]:
    """The dead letters of these carriers, and the outbox's parked rows `parked_for` these queues (all when empty)."""
    dead = [QueuePlace(carrier, _dead_letters(adapter, carrier), engine) for carrier in carriers]
    return [*dead, *(ParkedPlace(engine, queue) for queue in tuple(parked_for) or (None,))]


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
        _note(ledger, engine, letter, reason)
        if place.remove([letter.id], reason):
            yield letter


def _note(ledger: Ledger, engine: Engine, letter: Letter, why: str) -> None:
    """Where its row, or else the outbox's, can tell who asks for the job later. Of a key that another job owns, that job's row is left alone."""
    known = letter.envelope
    if known is None or letter.source != QueuePlace.source:
        return
    ledger.let_go(Holdup(letter.queue, known.ordering_key, known.id))
    entry = owner(engine, key=known.key, type=known.type, queue=letter.queue)
    mine = entry if entry and (entry.job_id, entry.digest) == (known.id, letter.digest) else None
    note = f"{DISCARDED}{why}; it was: {mine.last_error if mine else letter.error}"
    if not (mine and ledger.discard(mine.id, job=known.id, replays=mine.replays, note=note)):
        transact(engine, lambda connection: connection.execute(REMEMBER, {"job": known.id, "note": bounded(note)}))


def letters(where: Iterable[Place], selection: Selection) -> Iterator[tuple[Place, Letter]]:
    """All letters of a selection, place by place, oldest first, read in pages as they are asked for."""
    meant = ((place, letter) for place in where for letter in behind(place) if selection.matches(letter))
    return islice(meant, selection.limit)


def behind(place: Place, after: str | None = None) -> Iterator[Letter]:
    """All letters of a place, oldest first, behind the one with id `after`."""
    while page := place.page(after):
        yield from page
        after = page[-1].id


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
