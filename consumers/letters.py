"""What was given up, wherever it lies: a *letter* is one such job, a *place* is where letters lie."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from postroom.adapters.errors import Undecodable
from postroom.outbox.envelope import Envelope, digest, read_envelope
from postroom.outbox.parked import Dropped, Parked, ParkedRow

from .ledger.giving_up import give_up
from .recognised import recognised

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from sqlalchemy import Connection, Engine

    from postroom.adapters.seam import DeadLetter, DeadLetters, Header, Message
    from postroom.outbox.holdups import Holdup

__all__ = ["DISCARDED", "PAGE", "Letter", "ParkedPlace", "Place", "QueuePlace", "Revival", "behind", "envelope_of"]

DISCARDED = "discarded: "
"""How the last error of a job begins that was given up for good."""

PAGE = 100
"""Letters read at a time: each has its payload with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One job that was given up. `id` names it in its place; `envelope` is None for a message that was never a job of Postroom's.

    `is_lost`: its message is nowhere any more, so it can be discarded, and not replayed.
    """

    source: str
    queue: str
    id: str
    message: Message
    error: str
    attempts: int
    died_at: float
    envelope: Envelope | None
    is_lost: bool = False

    @property
    def digest(self) -> str:
        """The fingerprint of its payload, as the ledger knows it."""
        return (self.envelope.mapped if self.envelope else None) or digest(self.message.body)

    @property
    def names(self) -> Collection[str]:
        """What a person may call it by."""
        return {self.id} | ({self.envelope.id, self.envelope.key} if self.envelope else set())


@dataclass(frozen=True, slots=True, kw_only=True)
class Revival:
    """How a letter goes on its way again: with which headers, and what changes with it where jobs are known."""

    headers: Mapping[str, Header]
    holdup: Holdup | None = None
    """What it holds up, if it does; None of a message that is no job."""
    failed: tuple[int, int] | None = None
    """The ledger's row that has to be pending by then, failed until now: its id, and how often it was replayed."""
    is_known: bool = False
    """Whether a row of the ledger is its own."""


class Place(Protocol):
    """Where letters lie. All methods are safe to repeat."""

    source: str
    queue: str

    def page(self, after: str | None) -> Sequence[Letter]:
        """The next letters, oldest first, behind the one with id `after`."""

    def put_back(self, revivals: Mapping[str, Revival]) -> Sequence[str]:
        """Send these letters, by their ids, on their way again; return the ids of those that are. See `DeadLetters.put_back`."""

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

    def put_back(self, revivals: Mapping[str, Revival]) -> Sequence[str]:
        """See `Place`. The ledger knows of it already."""
        return self._dead.put_back([*revivals], {name: revival.headers for name, revival in revivals.items()})

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

    def put_back(self, revivals: Mapping[str, Revival]) -> Sequence[str]:
        """See `Place`."""
        return [str(seq) for seq in self._parked.replay([int(id_) for id_ in revivals])]

    def remove(self, ids: Sequence[str], reason: str) -> Sequence[str]:
        """See `Place`. Where a parked row was the next message of a job that the ledger knows, the job ends there in the same transaction."""
        return [str(seq) for seq in self._parked.discard([int(id_) for id_ in ids], reason, also=partial(_give_up, reason=reason))]


def _give_up(connection: Connection, dropped: Dropped, *, reason: str) -> None:
    note = f"{DISCARDED}{reason}; it was: {dropped.error}"
    give_up(connection, job=dropped.job, queue=dropped.queue, stamp=dropped.stamp, note=note)


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


def behind(place: Place, after: str | None = None) -> Iterator[Letter]:
    """All letters of a place, oldest first, behind the one with id `after`."""
    while page := place.page(after):
        yield from page
        after = page[-1].id
