"""Dead letters: a topic beside each carrier, read without joining a group.

A letter that was taken or put back gets a mark in the same topic, in one transaction with the copy that was put back: so no replay,
however often it is run or wherever it is broken off, has an effect twice. An operator who begins while another is at work fences that one off.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from confluent_kafka import TopicPartition

from postroom.adapters.seam import DeadLetter
from postroom.adapters.text import bounded

from .depth import topic_id_of
from .index import CARRIER, DEATH
from .wire import ENVELOPE_ID, ID, Record, arrived, as_text, headers_of, place_of, record_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import confluent_kafka
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient

    from postroom.adapters.seam import Header

    from .entry import Entry
    from .index import Index, Mark
    from .reader import Reader
    from .registry import Declared
    from .transactions import Transactions
    from .wire import Pair

__all__ = ["Graveyard", "letter_of"]

REASON, ATTEMPTS, FROM, SINCE = "postroom-dead-reason", "postroom-dead-attempts", "postroom-dead-from", "postroom-dead-record-timestamp"
_OWN = frozenset({CARRIER, REASON, ATTEMPTS, FROM, SINCE, DEATH})
_NUMBER = re.compile(r"[0-9]{1,19}")
_PLACE = re.compile(r"(.+)\[(\d+)\]@(\d+)")


def letter_of(entry: Entry, reason: str) -> Record:
    """A delivery as its dead letter: its bytes, key and headers as they came, with why and from where beside them."""
    source, record = entry.place.source, entry.record
    place = [
        (CARRIER, source.carrier),
        (FROM, f"{record.topic()}[{record.partition()}]@{record.offset()}"),
        (SINCE, str(place_of(record).get("timestamp", ""))),
    ]
    own = [*place, (REASON, bounded(reason)), (ATTEMPTS, str(entry.attempts)), (DEATH, _death(entry, place))]
    kept = [(name, value) for name, value in headers_of(record) if name not in {*_OWN, ID}]
    if as_text(dict(headers_of(record)).get(ENVELOPE_ID)) != entry.message.id:  # which is made of its place, if it was another program's
        kept.append((ID, entry.message.id))
    return Record(source.dead_letter, source.dead_letter, record.key(), record.value(), [*kept, *own])


def _death(entry: Entry, place: Sequence[Pair]) -> str:
    """The same for each letter about this delivery to this group, and for no other: a topic that was made again has other records at its places."""
    record = entry.record
    told = hashlib.blake2b(repr((entry.place.source.group, *place, record.key())).encode(), digest_size=12)
    told.update(record.value() or b"")
    return told.hexdigest()


class Graveyard:
    """See `postroom.adapters.seam.DeadLetters`. A letter's id tells where it lies: so it names one death, and no letter of another queue has it."""

    def __init__(self, carrier: Declared, index: Index, reader: Reader, admin: AdminClient, transactions: Transactions) -> None:
        self._carrier = carrier
        self._index = index
        self._reader = reader
        self._admin = admin
        self._transactions = transactions

    def count(self) -> int:
        """How many letters lie here."""
        return len(self._look())

    def list(self, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        """Return letters by the order of their death."""
        there = self._look()
        start = bisect_right(there, self._offset(after)) if after is not None else 0
        return self._fetch(there[start : start + max(limit, 0)])

    def take(self, ids: Sequence[str]) -> Sequence[DeadLetter]:
        """Remove and return letters, in one transaction."""
        return self._handle(ids, lambda _producer, _letter: None)

    def put_back(self, ids: Sequence[str], headers: Mapping[str, Mapping[str, Header]] | None = None) -> Sequence[str]:
        """failed -> pending, in one transaction; not into a foreign topic, but that of its retries."""
        carrier, given = self._carrier, headers or {}
        place = (carrier.retries, None) if carrier.retries else (carrier.topic, carrier.group)

        def revive(producer: Producer, letter: DeadLetter) -> None:
            copy = record_of(replace(letter.message, headers={**letter.message.headers, **given.get(letter.id, {})}), *place)
            producer.produce(copy.topic, copy.value, copy.key, headers=copy.headers)

        return [letter.id for letter in self._handle(ids, revive)]

    def _handle(self, ids: Sequence[str], step: Callable[[Producer, DeadLetter], None]) -> Sequence[DeadLetter]:
        """Do `step` with those of these letters that are still there, in the order asked for, in the transaction that says that they are handled."""
        dead_letter = self._carrier.dead_letter

        def work(producer: Producer) -> tuple[Sequence[DeadLetter], Mark]:
            letters = self._wanted(ids)
            for letter in letters:
                step(producer, letter)
            mark = self._index.mark_of(self._carrier.name, [self._offset(letter.id) for letter in letters])
            if mark.offsets:
                producer.produce(dead_letter, None, None, headers=[(CARRIER, self._carrier.name), *mark.headers])
            return letters, mark

        with self._index.lock:
            letters, mark = self._transactions.run(dead_letter, work)
            self._index.note(mark, self._index.next)  # it may be a moment until it can be read
            if first := self._index.disposable:
                self._admin.delete_records([TopicPartition(dead_letter, 0, first)])  # a courtesy to the disk, and no more
        return letters

    def _wanted(self, ids: Sequence[str]) -> Sequence[DeadLetter]:
        there = set(self._look())
        wanted = dict.fromkeys(name for name in ids if self._offset(name) in there)
        letters = {letter.id: letter for letter in self._fetch(sorted(map(self._offset, wanted)))}
        return [letters[name] for name in wanted if name in letters]

    def _look(self) -> Sequence[int]:
        with self._index.lock:
            topic = self._carrier.dead_letter
            self._index.read_on(self._reader, topic, topic_id_of(self._admin, topic))
            return self._index.open(self._carrier.name)

    def _fetch(self, offsets: Sequence[int]) -> Sequence[DeadLetter]:
        """The letters at these offsets, which ascend."""
        found: list[DeadLetter] = []
        wanted = set(offsets)
        for record in self._reader.read(self._carrier.dead_letter, offsets[0]) if offsets else ():
            if record.offset() in wanted:
                found.append(self._letter(record))
            if len(found) == len(wanted):
                break
        return found

    def _letter(self, record: confluent_kafka.Message[Any, Any]) -> DeadLetter:
        message = arrived(record, self._carrier.topic if self._carrier.group else self._carrier.name).message
        own = {name: as_text(value) or "" for name, value in headers_of(record) if name in _OWN}
        headers = {name: value for name, value in message.headers.items() if name not in _OWN}
        return DeadLetter(
            id=f"{self._carrier.dead_letter}@{record.offset()}",
            message=replace(message, headers=headers, properties=_place(own) if message.properties else {}),
            queue=self._carrier.name,
            reason=own.get(REASON, ""),
            attempts=int(own.get(ATTEMPTS, "0")),
            died_at=record.timestamp()[1] / 1000,
        )

    def _offset(self, letter: str) -> int:
        """Where it lies; nowhere, if it is none of this topic."""
        topic, _, number = letter.rpartition("@")
        return int(number) if topic == self._carrier.dead_letter and _NUMBER.fullmatch(number) else -1


def _place(own: Mapping[str, str]) -> dict[str, Any]:
    """Where the record lay that died; see `place_of`."""
    place = _PLACE.fullmatch(own.get(FROM, ""))
    since = own.get(SINCE, "")
    return {
        **({"topic": place[1], "partition": int(place[2]), "offset": int(place[3])} if place else {}),
        **({"timestamp": float(since)} if re.fullmatch(r"[\d.]+", since) else {}),
    }
