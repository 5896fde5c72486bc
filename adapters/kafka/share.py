"""A share group (KIP-932): one thread owns the client, and goes round by round.

What a poll brought must be acknowledged, every record of it, before the next poll. So a round ends when all of it is settled, or shortly
before its locks would run out: then what is not settled is released, and its holder has lost it. Nothing expires silently.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import AcknowledgeType, KafkaError, KafkaException, ShareConsumer

from postroom.adapters.seam import Verdict

from .entry import Entry
from .faults import DENIED, MISSING, translated
from .shelf import Shelf
from .wire import ENVELOPE_ID, GROUP, ID, Record, arrived, as_text, headers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import confluent_kafka

    from .desk import Desk
    from .entry import Source
    from .publisher import Publisher
    from .share_group import Limits

    Raw = confluent_kafka.Message[Any, Any]

__all__ = ["ShareFeed"]

_log = logging.getLogger("postroom.kafka")

PREVIEW = "a share group is read with librdkafka's share consumer, which it calls a preview: not for production yet"
POLL = 0.5
OUTAGE = 1.0
LOOK_EVERY = 3.0
"""Seconds between two looks whether the topics of an idle group are still there."""
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
    has gone: `missing` tells which of some topics have.
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
        missing: Callable[[Collection[str]], Sequence[str]] = lambda _: (),
        make: Callable[[dict[str, Any]], ShareConsumer] = ShareConsumer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = {**config, "error_cb": self._on_error, "stats_cb": self._on_statistics}
        self._sources = sources
        self._desk = desk
        self._publisher = publisher
        self._limits = limits
        self._reachable = reachable
        self._missing = missing
        self._looked_at = clock()
        self._make = make
        self._clock = clock
        self._group = str(config["group.id"])
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"postroom-kafka-{self._group}", daemon=True)
        self.joined = threading.Event()
        """Set when the first records are there, or none came for half a second after the group has given this member its part."""
        self._is_member = False

    def start(self) -> None:
        """Join the group; the first records come when the group has heard of this member twice: some seconds later, by its heartbeats."""
        _log.warning("group %s: %s", self._group, PREVIEW)
        self._thread.start()

    def stop(self) -> None:
        """Acknowledge what is settled, release the rest, leave."""
        self._stopping.set()
        self._desk.wake()

    def wait(self, patience: float) -> None:
        """Wait for the end of the thread."""
        self._thread.join(patience)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._serve(self._make(self._config))
            except KafkaException as failure:
                self._tell(failure.args[0])
                self._stopping.wait(OUTAGE)
            except Exception as error:  # noqa: BLE001 - a thread that ends silently is a deaf worker
                _log.exception("group %s: its client is replaced", self._group)
                self._tell(KafkaError(KafkaError._FAIL, repr(error)))  # noqa: SLF001
                self._stopping.wait(OUTAGE)

    def _serve(self, client: ShareConsumer) -> None:
        self._is_member = False
        client.set_acknowledgement_commit_callback(self._on_commit)
        client.subscribe([*self._sources])
        try:
            while not self._stopping.is_set():
                started = self._clock()
                was_member = self._is_member
                records = list(client.poll(POLL))
                if records or was_member:
                    self.joined.set()
                self._recovered(heard=bool(records))
                self._look_round(idle=not records)
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
            self._tell(error, topic if topic in self._sources else "group")
        else:
            _log.warning("group %s: %s", self._group, error)
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
            _log.warning("group %s: jobs that were not settled after %g s and go to others: %d", self._group, self._limits.hold, left_open)

    def _on_commit(self, offsets: Mapping[Any, set[int]], error: KafkaException | None) -> None:
        if error is not None:
            _log.warning("group %s: %d acknowledgements were refused: %s", self._group, sum(map(len, offsets.values())), error)

    def _on_statistics(self, packed: str) -> None:
        """The only place where the client tells of its membership."""
        self._is_member = self._is_member or bool(json.loads(packed).get("cgrp", {}).get("rebalance_cnt"))

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in DENIED or error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
            self._tell(error, "servers")

    def _recovered(self, *, heard: bool) -> None:
        self._desk.troubles.pop("group", None)
        if "servers" in self._desk.troubles and (heard or self._reachable()):
            self._desk.troubles.pop("servers", None)

    def _look_round(self, *, idle: bool) -> None:
        """Tell an empty topic from one that is not there."""
        if not idle or self._clock() - self._looked_at < LOOK_EVERY:
            return
        missing = self._missing(self._sources)
        for topic in self._sources:
            if topic in missing:
                self._tell(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), topic)
            else:
                self._desk.troubles.pop(topic, None)
        self._looked_at = self._clock()

    def _tell(self, error: KafkaError, key: str = "group") -> None:
        self._desk.tell(key, translated(error, f"topic {key!r}" if key in self._sources else f"group {self._group!r}"))
        if error.code() in DENIED:
            self.joined.set()  # more is not to be known by waiting


def _partition(record: Raw) -> tuple[str, int]:
    return record.topic() or "", record.partition() or 0
