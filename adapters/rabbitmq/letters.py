"""Dead letters: how a message is given up, and what can be done about it then.

A letter is a copy of the message as it came, with headers that say when, where and why it died. One that the broker itself gave up says the same
in x-death. A letter's id names one death: it starts with the time of it.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from postroom.adapters.errors import Unavailable
from postroom.adapters.seam import DeadLetter, Verdict
from postroom.adapters.text import bounded

from .content import OURS, encoded, message_of, ordering_key, republished, route_of
from .layout import partition_for
from .pages import Pages, rank
from .postings import Posting
from .reading import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from postroom.adapters.seam import Header

    from .broker import Broker
    from .layout import Carrier
    from .reading import Found
    from .shelves import Parcel

__all__ = ["RabbitDeadLetters", "letter_posting"]

LETTER = f"{OURS}letter"
REASON = f"{OURS}reason"
ATTEMPTS = f"{OURS}attempts"
SOURCE = f"{OURS}source"
_OF_A_DEATH = frozenset({LETTER, REASON, ATTEMPTS, SOURCE})

FRESH = 5.0
"""For how long (seconds) the next page may be what the last look has shown."""
MAX_REASON = 4000
"""The most bytes of a reason: headers travel in one frame, with all that the message had before."""


def letter_posting(parcel: Parcel, carrier: Carrier, reason: str, *, attempts: int, user: str) -> Posting:
    """A delivery as a letter, after so many attempts, addressed to its graveyard: the default exchange reaches that by its name.

    Raises InvalidMessage.
    """
    headers: dict[str, Header] = {
        LETTER: f"{time.time():.6f}-{secrets.token_hex(4)}",
        REASON: bounded(reason, MAX_REASON),
        ATTEMPTS: attempts,
        SOURCE: carrier.name,
        **route_of(parcel.properties, parcel.exchange, parcel.routing_key),
    }
    properties = encoded(republished(parcel.properties, headers, user=user), foreign=True)
    return Posting("", carrier.dead_letter, parcel.properties.message_id or "", properties, parcel.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """What a message in a graveyard says of its death."""

    found: Found
    id: str
    reason: str
    attempts: int
    source: str


class RabbitDeadLetters:
    """See `postroom.adapters.seam.DeadLetters`. Each method reads the graveyard alone; it blocks as `Reading` does, and as a publish."""

    def __init__(self, broker: Broker, carrier: Carrier, clock: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self._carrier = carrier
        self._clock = clock
        self._last_look: tuple[float, Pages] | None = None

    def list(self, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        """Return letters by the time of their deaths. Each look is at all of them; who reads on at once gets what the last look has shown."""
        if after is not None and self._last_look and self._clock() < self._last_look[0] + FRESH:
            page = self._last_look[1].behind(after, limit)
            if len(page) == limit:
                return page
        with self._reading() as reading:
            pages = Pages((self._dead(letter) for letter in self._letters(reading, limit)), limit, after)
        self._last_look = self._clock(), pages
        return pages.behind(after, limit)

    def take(self, ids: Sequence[str]) -> Sequence[DeadLetter]:
        """Remove and return letters."""
        with self._reading() as reading:
            taken = self._pick(reading, ids)
            reading.remove([letter.found for letter in taken])
        return [self._dead(letter) for letter in taken]

    def put_back(self, ids: Sequence[str], headers: Mapping[str, Mapping[str, Header]] | None = None) -> Sequence[str]:
        """Publish copies and have them confirmed, then ack. Raises Unavailable when none is confirmed: a letter whose copy is not stays."""
        given = headers or {}
        with self._reading() as reading:
            revived = self._pick(reading, ids)
            outcomes = self._broker.publisher.post([self._alive(letter, given.get(letter.id, {})) for letter in revived])
            confirmed = [letter for letter, outcome in zip(revived, outcomes, strict=True) if outcome.verdict is Verdict.CONFIRMED]
            reading.remove([letter.found for letter in confirmed])
        if revived and not confirmed:
            raise Unavailable(f"none of {len(revived)} could be put back: {outcomes[0].reason}")
        return [letter.id for letter in confirmed]

    def _reading(self) -> Reading:
        return Reading(self._broker, self._carrier.dead_letter)

    def _letters(self, reading: Reading, first: int) -> Iterator[Letter]:
        """Those of this carrier: several may have one graveyard."""
        for found in reading.messages(first):
            letter = _read(found)
            if letter.source in {"", self._carrier.name}:
                yield letter

    def _pick(self, reading: Reading, ids: Sequence[str]) -> Sequence[Letter]:
        """Those of these that are there, in the order asked for."""
        wanted = dict.fromkeys(ids)
        found: dict[str, Letter] = {}
        for letter in self._letters(reading, len(wanted)) if wanted else ():
            if letter.id in wanted:
                found.setdefault(letter.id, letter)
            if len(found) == len(wanted):
                break
        return [found[name] for name in wanted if name in found]

    def _dead(self, letter: Letter) -> DeadLetter:
        found = letter.found
        return DeadLetter(
            id=letter.id,
            message=message_of(found.properties, found.body, exchange="", routing_key=self._carrier.name, carrier=self._carrier.name),
            queue=self._carrier.name,
            reason=letter.reason,
            attempts=letter.attempts,
            died_at=rank(letter.id)[0],
        )

    def _alive(self, letter: Letter, headers: Mapping[str, Header]) -> Posting:
        """As it was before its death, to the very queue where it died; not to a foreign one, but to that of its retries."""
        properties, body = letter.found.properties, letter.found.body
        again = republished(properties, headers, user=self._broker.options.user, without=_OF_A_DEATH)
        message_id = properties.message_id or ""
        return Posting(
            "",
            self._carrier.retries or partition_for(self._carrier, ordering_key(properties), message_id),
            message_id,
            encoded(again, foreign=True),
            body,
        )


def _read(found: Found) -> Letter:
    headers: Mapping[Any, Any] = found.properties.headers or {}
    if LETTER not in headers:
        return _given_up_by_the_broker(found, _last_death(headers))
    return Letter(
        found=found,
        id=str(headers[LETTER]),
        reason=str(headers.get(REASON, "")),
        attempts=_whole(headers.get(ATTEMPTS)),
        source=str(headers.get(SOURCE, "")),
    )


def _given_up_by_the_broker(found: Found, death: Mapping[str, Any]) -> Letter:
    died_at = death.get("time")
    seconds = died_at.timestamp() if isinstance(died_at, datetime) else 0.0
    return Letter(
        found=found,
        id=f"{seconds:.6f}-{_fingerprint(found)}",
        reason=f"given up by RabbitMQ: {death.get('reason', 'it says no more')}",
        attempts=_whole(death.get("count")),
        source=str(death.get("queue", "")).partition("#")[0],
    )


def _last_death(headers: Mapping[Any, Any]) -> Mapping[str, Any]:
    deaths = headers.get("x-death")
    return deaths[0] if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict) else {}


def _whole(value: object) -> int:
    return int(value) if isinstance(value, int) else 0


def _fingerprint(found: Found) -> str:
    return hashlib.blake2b(f"{found.properties.message_id}".encode() + found.body, digest_size=4).hexdigest()
