"""A classic consumer group: one thread owns the client, polls it always, and commits what is done."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from postroom.adapters.errors import Unavailable

from .assigned import Assigned
from .entry import Entry
from .faults import DENIED, MISSING
from .keeper import OUTAGE, SERVERS, Keeper
from .lookout import Lookout
from .wire import arrived

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import confluent_kafka

    from .desk import Desk
    from .entry import Source
    from .lookout import Identities

    Record = confluent_kafka.Message[Any, Any]

__all__ = ["ClassicFeed"]

_log = logging.getLogger("postroom.kafka")

POLL, BUSY_POLL = 0.1, 0.01
"""How long (seconds) one poll waits; the shorter while a partition is paused, which may be resumed any moment."""
BATCH = 500
ROOM, GLANCE = 1.0, 0.1
"""How long (seconds) to do without room before partitions are paused, and how long a look for it takes. A pause costs all that the client has fetched
of a partition: it is fetched again, and whoever is quick runs out of work meanwhile."""
COMMIT_EVERY = 0.25
COMMIT_COUNT = 1000
"""A commit follows the last after so many seconds, or after so many jobs were done, whatever comes first; at a revoke and at the end at once."""
LAST_WISH = 3.0
"""How long (seconds) a revoke waits for the deliveries that are out, so that they are committed before their partition goes."""
PATIENCE = 10.0
LOOK_EVERY = 3.0
"""Seconds between two looks whether the topics are there, and are the same."""

_EOF = KafkaError._PARTITION_EOF  # noqa: SLF001
_SPOKEN = DENIED | MISSING | {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError.INCONSISTENT_GROUP_PROTOCOL}  # noqa: SLF001
"""Errors that do not pass by themselves: told at each receive, for as long as they last."""
_FENCED = frozenset({KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.STALE_MEMBER_EPOCH})
"""Answers to a commit that a rebalance has overtaken: it is made again, or whoever has the partition now makes it."""


class ClassicFeed:
    """The jobs of some topics for one group; all happens in the thread of its `keeper`. `identify`: see `Lookout`.

    The session timeout, not a lease, decides when others get the jobs of a process that vanished; handlers may take any time.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        sources: Mapping[str, Source],
        desk: Desk,
        *,
        most: int,
        skip_backlog: bool = False,
        identify: Callable[[Collection[str]], Identities] = lambda _: {},
        make: Callable[[dict[str, Any]], Consumer] = Consumer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.keeper = Keeper(config, desk, self._serve)
        self._config = {**config, "on_commit": self._on_commit, "error_cb": self.keeper.on_error}
        self._sources = sources
        self._desk = desk
        self._most = most
        self._skip_backlog = skip_backlog
        self._make = make
        self._clock = clock
        self._us = self.keeper.us
        self._places: dict[tuple[str, int], Assigned] = {}
        self._stopping = self.keeper.stopping
        self._committed_at, self._ended_before = clock(), 0
        self._crowded_since: float | None = None
        self._lookout = Lookout(sources.keys(), identify)
        self._looked_at = clock()
        self._is_outdated = False
        desk.troubles[self._us] = Unavailable(
            f"{self._us}: no partitions are assigned yet; those of a vanished member are, when its session times out"
        )

    @property
    def places(self) -> Sequence[Assigned]:
        """The partitions that are this member's now; the `span` of each one's watermark is how far it reads ahead of what it can commit."""
        return [*self._places.values()]

    def _serve(self) -> None:
        self._look_for_topics()
        self._is_outdated = False
        client = self._make(self._config)
        client.subscribe([*self._sources], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)
        try:
            while not (self._stopping.is_set() or self._is_outdated):
                if self._may_read():
                    self._accept(self._read(client))
                self._look_round(client)
                self._steer(client)
                self._commit(client, self._places.values() if self._is_time else ())
        finally:
            try:
                client.close()  # which revokes, and so commits
            finally:
                self._lose([place.place for place in self.places])

    def _may_read(self) -> bool:
        """Wait a moment for room. Without it nothing is read, until the consumer is full; then what is left to read keeps the client in its group."""
        enough, patience = (self._most // 2, 0.0) if self._is_full else (self._most, GLANCE)
        with self._desk.changed:
            if self._desk.changed.wait_for(lambda: self._stopping.is_set() or self._waiting < enough, patience):
                self._crowded_since = None
            elif self._crowded_since is None:
                self._crowded_since = self._clock()
        return self._crowded_since is None or self._is_full

    @property
    def _is_full(self) -> bool:
        """Whether there was no room for some time. A full consumer has room again at half of what is enough."""
        return self._crowded_since is not None and self._clock() - self._crowded_since >= ROOM

    @property
    def _waiting(self) -> int:
        """How many records wait to be taken, of all partitions: so memory does not grow with their number."""
        return sum(place.shelf.size for place in self._places.values())

    @property
    def _paused(self) -> bool:
        return any(place.paused for place in self._places.values())

    def _look_round(self, client: Consumer) -> None:
        """Notice that all is well: an idle partition of a cluster that is back says nothing by itself."""
        if self.keeper.is_cut_off:
            with suppress(KafkaException):
                client.list_topics(next(iter(self._sources)), timeout=OUTAGE)
                self.keeper.over(SERVERS)
        if not self.keeper.joined.is_set() and self._us not in self._desk.troubles and all(place.heard for place in self._places.values()):
            self.keeper.joined.set()
        if self._clock() - self._looked_at >= LOOK_EVERY and not self.keeper.is_cut_off:
            self._look_for_topics()

    def _look_for_topics(self) -> None:
        """What was read of a topic that has gone is dropped. When it has, or is there again, only a client that joins anew sees it soon."""
        found, changed = self._lookout.look()
        self._lose([place.place for place in self.places if place.source.topic in changed])
        for topic in found.keys() - {topic for topic, _ in self._places}:
            if isinstance(known := found[topic], KafkaError):
                self.keeper.tell(topic, known, f"topic {topic!r}")
            else:
                self.keeper.over(topic)
        self._is_outdated = self._is_outdated or bool(changed)
        self._looked_at = self._clock()

    def _read(self, client: Consumer) -> Sequence[Record]:
        """One that is waited for, and what is there besides.

        The client drops what it has of a partition that goes. It can't drop what it has given already: if the partition goes and comes back while
        it is asked for the others, that record would count as the newest of what is read anew, and all before it as read.
        """
        first = client.poll(BUSY_POLL if self._paused else POLL)
        if first is None:
            return []
        place = self._place_of(first)
        others = client.consume(BATCH - 1, 0)
        return [first, *others] if self._place_of(first) is place else others

    def _place_of(self, record: Record) -> Assigned | None:
        return self._places.get((record.topic() or "", record.partition() or 0))

    def _accept(self, records: Sequence[Record]) -> None:
        """Events are told apart from records before anything else of them is read. What was revoked meanwhile is dropped."""
        fresh: list[tuple[Assigned, Entry | None, int]] = []
        for record in records:
            if (place := self._place_of(record)) is not None:
                place.heard = True
            if (error := record.error()) is not None:
                self._put(fresh)  # before the end of its partition is noted: nothing behind an end is begun
                fresh = []
                self._event(error, record, place)
            elif place is not None:
                fresh.append((place, self._entry(place, record), record.offset() or 0))
        self._put(fresh)

    def _put(self, fresh: Sequence[tuple[Assigned, Entry | None, int]]) -> None:
        if not fresh:
            return
        with self._desk.changed:
            for place, entry, offset in fresh:
                self._recovered(place)
                if not place.watermark.begin(offset):
                    continue
                if entry is None:
                    place.watermark.finish(offset)
                else:
                    place.shelf.enter(entry)
            self._desk.changed.notify_all()

    def _entry(self, place: Assigned, record: Record) -> Entry | None:
        """The job of a record; None for what is none of ours: a tombstone, or a message for another group."""
        if record.value() is None:
            self._desk.tombstones += 1
            _log.info("%s: a tombstone is passed over", _where(record))
            return None
        found = arrived(record, place.source.queue)
        if found.group not in (None, place.source.only):
            return None
        return Entry(place, record.offset() or 0, record, found.message, 0)

    def _event(self, error: KafkaError, record: Record, place: Assigned | None) -> None:
        if error.code() == _EOF:
            if place is not None:
                with self._desk.changed:
                    place.watermark.reach(record.offset() or 0)
                    self._recovered(place)
        elif error.fatal() or error.code() == KafkaError._FATAL:  # noqa: SLF001
            raise KafkaException(error)
        elif error.code() in _SPOKEN:
            if whole := error.code() in MISSING:  # it names a partition all the same
                error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)  # in the words of `_look_for_topics`
            topic = record.topic()
            key = _key(topic, None if whole else record.partition()) if topic else self._us
            self.keeper.tell(key, error, _where(record, whole=whole) if topic else self._us)
        else:
            _log.warning("%s: %s", _where(record), error.str())

    def _recovered(self, place: Assigned) -> None:
        """The broker has answered for it, which says nothing of other partitions."""
        if self._desk.troubles:
            self.keeper.over(place.source.topic, _key(place.source.topic, place.partition), SERVERS)

    def _steer(self, client: Consumer) -> None:
        """Pause and resume as each partition's own state says, never as it was before."""
        share = max(1, self._most // len(self._places)) if self._is_full else None
        for place in self._places.values():
            place.share = share
            if (wanted := place.wants_pause) is not place.paused:
                (client.pause if wanted else client.resume)([place.place])
                place.paused = wanted

    @property
    def _is_time(self) -> bool:
        return self._desk.ended - self._ended_before >= COMMIT_COUNT or self._clock() - self._committed_at >= COMMIT_EVERY

    def _commit(self, client: Consumer, places: Iterable[Assigned], *, wait: bool = False) -> None:
        with self._desk.changed:
            ended, due = self._desk.ended, [offset for place in places if (offset := place.due()) is not None]
        if not due:
            return
        self._committed_at, self._ended_before = self._clock(), ended
        try:
            if wait:
                client.commit(offsets=due, asynchronous=False)
            else:
                client.commit(offsets=due, asynchronous=True)
        except KafkaException as failure:  # a successor reads them again, and the ledger knows them
            self._on_commit(failure.args[0], due)

    def _on_commit(self, error: KafkaError | None, offsets: Sequence[TopicPartition]) -> None:
        if error is None:
            return
        level = logging.DEBUG if error.code() in _FENCED else logging.WARNING
        _log.log(level, "%s: %d offsets were not committed: %s", self._us, len(offsets), error.str())
        for offset in offsets:
            if (place := self._places.get((offset.topic, offset.partition))) is not None:
                place.commit_again()

    def _on_assign(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        starts = self._starts(client, partitions)
        client.incremental_assign(starts)
        with self._desk.changed:
            self._forget(partitions)
            for partition in starts:
                start = partition.offset if partition.offset >= 0 else None
                place = Assigned(self._sources[partition.topic], partition.partition, start=start)
                self._places[partition.topic, partition.partition] = place
                self._desk.open(place)
            self.keeper.over(self._us)

    def _starts(self, client: Consumer, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Where the group has committed; for what it has never read, the beginning, or the end of a topic that is new to it.

        A topic that was made anew is read from its beginning: what is committed may be of the old one, by a job that had just ended.
        Raises when that can't be told now: then the client is replaced, and asks again.
        """
        found = client.committed(partitions, timeout=PATIENCE) if partitions else []
        for start in found:
            if start.topic in self._lookout.anew:
                start.offset = OFFSET_BEGINNING
            elif start.offset < 0:
                start.offset = self._first(client, start.topic)
        self._lookout.anew -= {start.topic for start in found}
        return found

    def _first(self, client: Consumer, topic: str) -> int:
        """To skip a backlog is for new groups: one that has read the topic before would miss what came first into a partition that was added."""
        if not self._skip_backlog:
            return OFFSET_BEGINNING
        partitions = [TopicPartition(topic, number) for number in client.list_topics(topic, timeout=PATIENCE).topics[topic].partitions]
        has_read = any(place.offset >= 0 for place in client.committed(partitions, timeout=PATIENCE))
        return OFFSET_BEGINNING if has_read else OFFSET_END

    def _on_revoke(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        """Take no new work from these, wait a moment for what is out, commit, and let go."""
        places = self._mine(partitions)
        late = self._clock() + LAST_WISH
        with self._desk.changed:
            self._desk.empty(places)
            while not self._stopping.is_set() and self._desk.holds(places) and (left := late - self._clock()) > 0:
                self._desk.changed.wait(left)
        self._commit(client, places, wait=not self.keeper.is_cut_off)
        self._lose(partitions)

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """They have another owner already: nothing of them is committed."""
        _log.warning("%s: %d partitions were lost to others", self._us, len(partitions))
        self._lose(partitions)

    def _lose(self, partitions: list[TopicPartition]) -> None:
        with self._desk.changed:
            self._forget(partitions)

    def _forget(self, partitions: list[TopicPartition]) -> None:
        self._desk.close(self._mine(partitions))
        for partition in partitions:
            self._places.pop((partition.topic, partition.partition), None)
            self.keeper.over(_key(partition.topic, partition.partition))

    def _mine(self, partitions: Iterable[TopicPartition]) -> list[Assigned]:
        keys = [(partition.topic, partition.partition) for partition in partitions]
        return [self._places[key] for key in keys if key in self._places]


def _key(topic: str, partition: int | None) -> str:
    """Whose trouble it is: a partition's, or all of a topic's."""
    return f"{topic}[{partition}]" if partition is not None and partition >= 0 else topic


def _where(record: Record, *, whole: bool = False) -> str:
    if not record.topic():
        return "the group"
    has_partition = not whole and (record.partition() or 0) >= 0
    return f"{record.topic()}[{record.partition()}] at {record.offset()}" if has_partition else f"topic {record.topic()!r}"
