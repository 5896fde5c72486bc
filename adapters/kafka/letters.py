"""Dead letters: a topic beside each carrier, read without joining a group.

A letter that was taken or put back gets a mark in the same topic, in one transaction with the copy that was put back: so no replay,
however often it is run or wherever it is broken off, has an effect twice. An operator who begins while another is at work fences that one off.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, Producer, TopicPartition

from postroom.adapters.errors import Unavailable
from postroom.adapters.seam import DeadLetter
from postroom.adapters.text import bounded

from .depth import topic_id_of
from .faults import translated
from .wire import ENVELOPE_ID, ID, Record, arrived, as_text, headers_of, place_of, record_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import confluent_kafka
    from confluent_kafka.admin import AdminClient

    from postroom.adapters.seam import Header

    from .entry import Entry
    from .reader import Reader
    from .registry import Declared
    from .wire import Arrived

    Raw = confluent_kafka.Message[Any, Any]
    Letters = list[tuple[Raw, Arrived]]

__all__ = ["Graveyard", "Index", "letter_of"]

CARRIER, REASON, ATTEMPTS, FROM = "postroom-dead-carrier", "postroom-dead-reason", "postroom-dead-attempts", "postroom-dead-from"
SINCE = "postroom-dead-record-timestamp"
HANDLED = "postroom-dead-handled"
_OWN = frozenset({CARRIER, REASON, ATTEMPTS, FROM, SINCE})
_PLACE = re.compile(r"(.+)\[(\d+)\]@(\d+)")

PATIENCE = 30.0
_BRIEF = {"transaction.timeout.ms": 15_000, "message.timeout.ms": 10_000}
"""A replay whose process died holds up the readers of what it wrote to: no longer than this, and until the next replay begins."""


def letter_of(entry: Entry, reason: str) -> Record:
    """A delivery as its dead letter: its bytes, key and headers as they came, with why and from where beside them."""
    source, record = entry.place.source, entry.record
    own = [
        (CARRIER, source.carrier),
        (REASON, bounded(reason)),
        (ATTEMPTS, str(entry.attempts)),
        (FROM, f"{record.topic()}[{record.partition()}]@{record.offset()}"),
        (SINCE, str(place_of(record).get("timestamp", ""))),
    ]
    kept = [(name, value) for name, value in headers_of(record) if name not in {*_OWN, ID}]
    if as_text(dict(headers_of(record)).get(ENVELOPE_ID)) != entry.message.id:  # which is made of its place, if it was another program's
        kept.append((ID, entry.message.id))
    return Record(source.dead_letter, source.dead_letter, record.key(), record.value(), [*kept, *own])


@dataclass(slots=True)
class Index:
    """What is known of one dead-letter topic: how far it was read, and by carrier the offsets of the letters that nobody has handled."""

    topic_id: str | None = None
    next: int = 0
    alive: dict[str, dict[int, None]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def read_on(self, reader: Reader, topic: str, topic_id: str | None) -> None:
        """Read what was added since, or all of a topic that was deleted and made again; forget what its retention has removed."""
        if topic_id != self.topic_id:
            self.topic_id, self.next = topic_id, 0
            self.alive.clear()
        for record in reader.read(topic, self.next):
            self.next = (record.offset() or 0) + 1
            self._add(record)
        first = reader.first(topic)
        self.alive = {carrier: {offset: None for offset in offsets if offset >= first} for carrier, offsets in self.alive.items()}

    def _add(self, record: Raw) -> None:
        headers = dict(headers_of(record))
        carrier = as_text(headers.get(CARRIER)) or ""
        if HANDLED in headers:
            for offset in json.loads(as_text(headers[HANDLED]) or "[]"):
                self.alive.get(carrier, {}).pop(offset, None)
        else:
            self.alive.setdefault(carrier, {})[record.offset() or 0] = None


class Graveyard:
    """See `postroom.adapters.seam.DeadLetters`. A letter's id is its offset: it names one death."""

    def __init__(self, carrier: Declared, index: Index, reader: Reader, admin: AdminClient, producer: Mapping[str, Any]) -> None:
        self._carrier = carrier
        self._index = index
        self._reader = reader
        self._admin = admin
        self._producer = producer

    def count(self) -> int:
        """How many letters lie here."""
        return len(self._look())

    def list(self, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        """Return letters by the order of their death."""
        last = _offset(after) if after is not None else -1
        wanted = [offset for offset in self._look() if offset > last][: max(limit, 0)]
        return [_letter(record, found, self._carrier) for record, found in self._fetch(wanted)]

    def take(self, ids: Sequence[str]) -> Sequence[DeadLetter]:
        """Remove and return letters, in one transaction."""
        with self._handling(ids) as (producer, found):
            self._mark(producer, [record for record, _ in found])
        return [_letter(record, arrival, self._carrier) for record, arrival in found]

    def put_back(self, ids: Sequence[str], headers: Mapping[str, Header] | None = None) -> Sequence[str]:
        """failed -> pending, in one transaction; not into a foreign topic, but that of its retries. Blocks for about a minute at most."""
        carrier = self._carrier
        with self._handling(ids) as (producer, found):
            for _, arrival in found:
                message = replace(arrival.message, headers={**_without_own(arrival.message.headers), **(headers or {})})
                copy = record_of(message, *((carrier.retries, None) if carrier.retries else (carrier.topic, carrier.group)))
                producer.produce(copy.topic, copy.value, copy.key, headers=copy.headers)
            self._mark(producer, [record for record, _ in found])
        return [str(record.offset()) for record, _ in found]

    @contextmanager
    def _handling(self, ids: Sequence[str]) -> Iterator[tuple[Producer, Letters]]:
        """A transaction that no other operator's can overlap, with those of these letters that are still there, in the order asked for."""
        with self._index.lock:
            try:
                producer = Producer({**self._producer, **_BRIEF, "transactional.id": self._transaction})
                producer.init_transactions(PATIENCE)
                alive = self._look()
                wanted = [offset for offset in dict.fromkeys(map(_offset, ids)) if offset in alive]
                letters = {record.offset(): (record, found) for record, found in self._fetch(sorted(wanted))}
                producer.begin_transaction()
                yield producer, [letters[offset] for offset in wanted if offset in letters]
                producer.commit_transaction(PATIENCE)
            except KafkaException as failure:  # nothing of it happened, or all: the next look tells
                raise _unavailable(failure, self._carrier.dead_letter) from None
            self._truncate()

    def _mark(self, producer: Producer, handled: Sequence[Raw]) -> None:
        if handled:
            offsets = json.dumps([record.offset() for record in handled])
            producer.produce(self._carrier.dead_letter, None, None, headers=[(CARRIER, self._carrier.name), (HANDLED, offsets)])

    def _look(self) -> Mapping[int, None]:
        with self._index.lock:
            topic = self._carrier.dead_letter
            self._index.read_on(self._reader, topic, topic_id_of(self._admin, topic))
            return dict(self._index.alive.get(self._carrier.name, {}))

    def _fetch(self, offsets: Sequence[int]) -> Letters:
        """The letters at these offsets, which ascend."""
        found: Letters = []
        wanted = set(offsets)
        for record in self._reader.read(self._carrier.dead_letter, offsets[0]) if offsets else ():
            if record.offset() in wanted:
                found.append((record, arrived(record, self._queue)))
            if len(found) == len(wanted):
                break
        return found

    def _truncate(self) -> None:
        """Let go of what lies before the first letter that is left: a courtesy to the disk, and no more."""
        left = [offset for alive in self._index.alive.values() for offset in alive]
        if self._index.next:
            self._admin.delete_records([TopicPartition(self._carrier.dead_letter, 0, min(left, default=self._index.next))])

    @property
    def _queue(self) -> str:
        return self._carrier.topic if self._carrier.group else self._carrier.name

    @property
    def _transaction(self) -> str:
        return "postroom-letters-" + hashlib.blake2b(self._carrier.dead_letter.encode(), digest_size=16).hexdigest()


def _letter(record: Raw, found: Arrived, carrier: Declared) -> DeadLetter:
    own = {name: as_text(value) or "" for name, value in headers_of(record) if name in _OWN}
    return DeadLetter(
        id=str(record.offset()),
        message=replace(found.message, headers=_without_own(found.message.headers), properties=_place(own) if found.message.properties else {}),
        queue=carrier.name,
        reason=own.get(REASON, ""),
        attempts=int(own.get(ATTEMPTS, "0")),
        died_at=record.timestamp()[1] / 1000,
    )


def _place(own: Mapping[str, str]) -> dict[str, Any]:
    """Where the record lay that died; see `place_of`."""
    place = _PLACE.fullmatch(own.get(FROM, ""))
    since = own.get(SINCE, "")
    return {
        **({"topic": place[1], "partition": int(place[2]), "offset": int(place[3])} if place else {}),
        **({"timestamp": float(since)} if re.fullmatch(r"[\d.]+", since) else {}),
    }


def _without_own(headers: Mapping[str, Header]) -> dict[str, Header]:
    return {name: value for name, value in headers.items() if name not in _OWN}


def _offset(letter: str) -> int:
    return int(letter) if letter.isascii() and letter.isdigit() else -1


def _unavailable(failure: KafkaException, place: str) -> Exception:
    told = translated(failure.args[0], place)
    return told if not isinstance(told, ValueError) else Unavailable(str(told))
