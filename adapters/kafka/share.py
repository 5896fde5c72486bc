"""A share group (KIP-932): one thread owns the client, and goes round by round.

What a poll brought must be acknowledged, every record of it, before the next poll. So a round ends when all of it is settled, or shortly
before its locks would run out: then what is not settled is released, and its holder has lost it. Nothing expires silently.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import AcknowledgeType, KafkaError, KafkaException, ShareConsumer

from postroom.adapters.seam import Verdict

from .entry import Entry
from .faults import DENIED, MISSING
from .keeper import SERVERS, Keeper
from .shelf import Shelf
from .wire import ENVELOPE_ID, GROUP, ID, Record, arrived, as_text, headers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import confluent_kafka

    from .desk import Desk
    from .entry import Source
    from .lookout import Identities
    from .publisher import Publisher
    from .share_group import Limits

    Raw = confluent_kafka.Message[Any, Any]

__all__ = ["ShareFeed"]

_log = logging.getLogger("postroom.kafka")

PREVIEW = "a share group is read with librdkafka's share consumer, which it calls a preview: not for production yet"
POLL = 0.5
LOOK_EVERY = 3.0
"""Seconds between two looks whether the topics are still there."""
FAREWELL = 10.0


class _Acquired:
    """See `entry.Place`: the records of one partition in one round."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.shelf = Shelf(ordered=False)
        self.over = False
        self.ends: dict[int, AcknowledgeType] = {}
        self.open = 0

    def enter(self, entry: Entry) -> None:
        """It may be handed out."""
        self.open += 1
        self.shelf.enter(entry)

    def end(self, entry: Entry, *, buried: bool) -> None:
        """See `Place`."""
        self.open -= 1
        self.ends[entry.offset] = AcknowledgeType.REJECT if buried else AcknowledgeType.ACCEPT


class ShareFeed:
    """The jobs of some topics for one share group.

    `reachable` asks the cluster, once its silence was noticed: a share consumer itself says nothing when it is back. Nor does it say that a topic
    has gone: `identify` does, see `Lookout`.
    """

    def __init__(  # noqa: PLR0913 - what it is made of
        self,
        config: Mapping[str, Any],
        sources: Mapping[str, Source],
        desk: Desk,
        publisher: Publisher,
        *,
        limits: Limits,
        reachable: Callable[[], bool] = lambda: True,
        identify: Callable[[Collection[str]], Identities] = lambda _: {},
        make: Callable[[dict[str, Any]], ShareConsumer] = ShareConsumer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.keeper = Keeper(config, desk, self._serve)
        self._config = {**config, "error_cb": self.keeper.on_error, "stats_cb": self._on_statistics}
        self._sources = sources
        self._desk = desk
        self._publisher = publisher
        self._limits = limits
        self._reachable = reachable
        self._identify = identify
        self._looked_at = clock()
        self._make = make
        self._clock = clock
        self._us = self.keeper.us
        self._stopping = self.keeper.stopping
        self._is_member = False
        _log.warning("%s: %s", self._us, PREVIEW)

    def _serve(self) -> None:
        client = self._make(self._config)
        self._is_member = False
        client.set_acknowledgement_commit_callback(self._on_commit)
        client.subscribe([*self._sources])
        try:
            while not self._stopping.is_set():
                started = self._clock()
                was_member = self._is_member
                records = list(client.poll(POLL))
                if records or was_member:  # the first are there, or none came in a poll of a member
                    self.keeper.joined.set()
                self._recovered(heard=bool(records))
                self._look_round()
                self._round(client, records, started + self._limits.hold)
            client.commit_sync(FAREWELL)
        finally:
            client.close()

    def _round(self, client: ShareConsumer, records: Sequence[Raw], late: float) -> None:
        """Hand out, wait, acknowledge every one."""
        places: dict[tuple[str, int], _Acquired] = {}
        acquired = [record for record in records if self._is_acquired(record)]
        for record in acquired:
            place = places.setdefault(_partition(record), _Acquired(self._sources[record.topic() or ""]))
            self._admit(place, record)
        if places:
            self._wait(places.values(), late)
        for record in acquired:
            client.acknowledge(record, places[_partition(record)].ends.get(record.offset() or 0, AcknowledgeType.RELEASE))

    def _is_acquired(self, record: Raw) -> bool:
        """Whether it lies somewhere. What does not is news of the group or of a topic: to acknowledge it would end the round for all."""
        topic, offset = record.topic() or "", record.offset()
        if topic in self._sources and offset is not None and offset >= 0:
            return True
        if (error := record.error()) is not None and error.code() in DENIED | MISSING:
            self._tell(error, topic)
        else:
            _log.warning("%s: %s", self._us, error)
        return False

    def _admit(self, place: _Acquired, record: Raw) -> None:
        """A job goes to the shelf; what is none is acknowledged with its round. Errors are told apart first."""
        if (error := record.error()) is not None:
            _log.warning("%s: %s", record.topic(), error.str())
            return
        if record.value() is None:
            self._desk.tombstones += 1
            place.ends[record.offset() or 0] = AcknowledgeType.ACCEPT
            return
        found = arrived(record, place.source.queue)
        if found.group not in (None, place.source.only) or (self._is_worn(record) and self._renewed(place, record, found.message.id)):
            place.ends[record.offset() or 0] = AcknowledgeType.ACCEPT
        else:
            place.enter(Entry(place, record.offset() or 0, record, found.message, max(0, (record.delivery_count() or 1) - 1)))

    def _is_worn(self, record: Raw) -> bool:
        return (record.delivery_count() or 1) >= self._limits.deliveries - 1

    def _renewed(self, place: _Acquired, record: Raw, message_id: str) -> bool:
        """Send a fresh copy of a record that the broker would soon drop, whatever its job's own count says: the ledger's counts, not the broker's.

        The copy of another program's record has the id of the first, which was made of its place.
        """
        source, headers = place.source, [(name, value) for name, value in headers_of(record) if name not in {GROUP, ID}]
        ours = [(ID, message_id)] if as_text(dict(headers).get(ENVELOPE_ID)) != message_id else []
        only = [(GROUP, source.only)] if source.only and not source.retries else []
        copy = Record(source.retries or source.topic, source.queue, record.key(), record.value(), [*headers, *ours, *only])
        return self._publisher.send([copy])[0].verdict is Verdict.CONFIRMED

    def _wait(self, places: Iterable[_Acquired], late: float) -> None:
        with self._desk.changed:
            for place in places:
                self._desk.open(place)
            self._desk.changed.notify_all()
            while any(place.open for place in places) and not self._stopping.is_set() and (left := late - self._clock()) > 0:
                self._desk.changed.wait(left)
            left_open = 0 if self._stopping.is_set() else sum(place.open for place in places)
            self._desk.close(places)
        if left_open:
            _log.warning("%s: jobs that were not settled after %g s and go to others: %d", self._us, self._limits.hold, left_open)

    def _on_commit(self, offsets: Mapping[Any, set[int]], error: KafkaException | None) -> None:
        if error is not None:
            _log.warning("%s: %d acknowledgements were refused: %s", self._us, sum(map(len, offsets.values())), error)

    def _on_statistics(self, packed: str) -> None:
        """The only place where the client tells of its membership."""
        self._is_member = self._is_member or bool(json.loads(packed).get("cgrp", {}).get("rebalance_cnt"))

    def _recovered(self, *, heard: bool) -> None:
        self.keeper.over(self._us)
        if self.keeper.is_cut_off and (heard or self._reachable()):
            self.keeper.over(SERVERS)

    def _look_round(self) -> None:
        """Tell an empty topic from one that is not there."""
        if self._clock() - self._looked_at < LOOK_EVERY:
            return
        for topic, known in self._identify(self._sources).items():
            if isinstance(known, KafkaError):
                self._tell(known, topic)
            else:
                self.keeper.over(topic)
        self._looked_at = self._clock()

    def _tell(self, error: KafkaError, topic: str) -> None:
        """Of a topic, or of what lies in none: the group."""
        key, place = (topic, f"topic {topic!r}") if topic in self._sources else (self._us, self._us)
        self.keeper.tell(key, error, place)


def _partition(record: Raw) -> tuple[str, int]:
    return record.topic() or "", record.partition() or 0
