"""Declaring: topics and dead-letter topics, compared first and made then."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, NewPartitions, NewTopic, ResourceType

from postroom.adapters.errors import AccessDenied, ConfigurationError, TopologyMismatch, Unavailable

from .depth import waiting
from .faults import DENIED, MISSING, answer_of, translated, translating
from .reader import partitions_of
from .registry import TOPIC, Declared, declared_by
from .topics import REGISTRY, topics_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from confluent_kafka.admin import ConfigEntry

    from postroom.adapters.seam import Queue

    from .lookout import Identities
    from .options import Options
    from .reach import Reach
    from .registry import Registry
    from .topics import Topic

__all__ = ["PATIENCE", "Topology", "result_of"]

_log = logging.getLogger("postroom.kafka")

PATIENCE = 15.0
SPREAD = 0.05

_NOT_FOR_JOBS = frozenset({TOPIC, "__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})
_COMPARED = ("topic", "ordered", "dead_letter", "retries")


class Topology:
    """What is declared, against what is there."""

    def __init__(self, reach: Reach, registry: Registry, options: Options) -> None:
        self._reach = reach
        self._admin = reach.admin
        self._registry = registry
        self._options = options

    def ensure(self, queues: Sequence[Queue], *, passive: bool) -> None:
        """Compare all, then make what is missing. Raises TopologyMismatch that names each difference; nothing is changed then."""
        expected = [carrier for queue in queues for carrier in declared_by(queue)]
        if own := sorted({topic for carrier in expected for topic in (carrier.topic, carrier.dead_letter)} & _NOT_FOR_JOBS):
            raise ConfigurationError(
                f"{own[0]!r} is no name for a queue here: that topic holds what {'Kafka' if own[0] != TOPIC else 'Postroom'} itself keeps"
            )
        topics = {topic.name: topic for carrier in expected for topic in topics_of(carrier, self._options)}
        counts = self._partitions()
        there = [topic for topic in (REGISTRY, *topics.values()) if topic.name in counts]
        differences = [
            *self._compare_carriers(expected, counts, passive=passive),
            *self._compare_topics(there, counts, passive=passive),
            *self._compare_configs(there, passive=passive),
        ]
        if differences:
            raise TopologyMismatch("; ".join(differences))
        if not passive:
            self._make([topic for topic in topics.values() if topic.name not in counts], own=TOPIC not in counts)
            self._grow(topic for topic in topics.values() if topic.name in counts and (topic.partitions or 0) > counts[topic.name])
            self._register(expected)

    def require(self, carriers: Iterable[Declared]) -> None:
        """Raise ConfigurationError when a declared carrier's topic has gone, AccessDenied when we may not see it."""
        counts = self._partitions()
        for carrier in carriers:
            if carrier.topic not in counts:
                partitions_of(self._admin.get(), carrier.topic)
                raise ConfigurationError(
                    f"queue {carrier.name!r} is declared, but its topic {carrier.topic!r} is gone: declare it again with ensure()"
                )

    def identify(self, topics: Collection[str]) -> Identities:
        """Which topics these are; nothing of one about which the cluster gives no answer within a second."""
        found: dict[str, str | KafkaError] = {}
        asked = self._admin.get().describe_topics(TopicCollection([*topics]), request_timeout=1.0)
        for topic, answer in asked.items():
            try:
                found[topic] = str(answer_of(answer, 2.0, topic).topic_id)
            except KafkaException as failure:
                if (code := failure.args[0].code()) in DENIED | MISSING:
                    found[topic] = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART if code in MISSING else code)
            except Unavailable:
                continue
        return found

    def is_reachable(self) -> bool:
        """Whether the cluster answers, within a second."""
        try:
            self._admin.get().list_topics(TOPIC, timeout=1.0)
        except KafkaException:
            return False
        return True

    def _partitions(self) -> dict[str, int]:
        self._reach.require()
        with translating(self._options.servers):
            found = self._admin.get().list_topics(timeout=PATIENCE).topics
        return {name: len(topic.partitions) for name, topic in found.items() if topic.error is None}

    def _compare_carriers(self, expected: Iterable[Declared], counts: Mapping[str, int], *, passive: bool) -> Iterable[str]:
        declared = self._registry.all()
        jobs, graves = ({getattr(known, place): known.name for known in declared.values()} for place in ("topic", "dead_letter"))
        for carrier in expected:
            if other := jobs.get(carrier.dead_letter):
                yield f"queue {carrier.name!r}: expected topic {carrier.dead_letter!r} for its dead letters, but the jobs of {other!r} are there"
            if other := graves.get(carrier.topic):
                yield f"queue {carrier.name!r}: expected topic {carrier.topic!r} for its jobs, but the dead letters of {other!r} are there"
            if carrier.retries and carrier.topic not in counts:
                yield f"queue {carrier.name!r}: expected another program to have made its topic {carrier.topic!r}, and it is not there"
                continue
            there = declared.get(carrier.name)
            if there is None:
                if passive:
                    yield f"queue {carrier.name!r}: expected it to be declared, and it is not there"
                continue
            for name in _COMPARED:
                ours, theirs = getattr(carrier, name), getattr(there, name)
                if ours != theirs:
                    yield f"queue {carrier.name!r}: expected {name} {ours!r}, but it is there with {name} {theirs!r}"
            for topic in sorted({carrier.topic, carrier.dead_letter} - {*counts}) if passive else ():
                yield f"queue {carrier.name!r}: expected its topic {topic!r}, and it is not there"

    def _compare_topics(self, there: Iterable[Topic], counts: Mapping[str, int], *, passive: bool) -> Iterable[str]:
        for topic in there:
            actual = counts[topic.name]
            if topic is not REGISTRY and self._options.replication not in (None, *(copies := self._copies(topic.name))):
                there_are = ", ".join(map(str, copies))
                yield f"topic {topic.name!r}: expected replication {self._options.replication}, but it is there with replication {there_are}"
            if topic.partitions not in (None, actual) and (why := self._in_the_way(topic, actual, passive=passive)) is not None:
                yield f"topic {topic.name!r}: expected partitions {topic.partitions}, but it is there with partitions {actual}{why}"

    def _compare_configs(self, there: Collection[Topic], *, passive: bool) -> Iterable[str]:
        """Who only works with a topic may not be allowed to see its configuration (DescribeConfigs): that is left to who declares it."""
        found = self._configs(topic.name for topic in there)
        for topic in there:
            try:
                entries = result_of(found[topic.name], f"topic {topic.name!r}", but=KafkaError.UNKNOWN_TOPIC_OR_PART)  # it is new, or going
            except (AccessDenied, ConfigurationError) as error:
                if passive or topic.asked:
                    raise
                _log.info("its configuration is not compared: %s", error)
            else:
                yield from topic.differences({name: entry.value for name, entry in entries.items()}) if entries else ()

    def _copies(self, topic: str) -> Sequence[int]:
        """How many copies there are of its partitions: one number, unless somebody has moved them."""
        with translating(f"topic {topic!r}"):
            partitions = self._admin.get().list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        return sorted({len(partition.replicas) for partition in partitions.values()})

    def _in_the_way(self, topic: Topic, actual: int, *, passive: bool) -> str | None:
        """Why a topic can't get the partitions that it should have; None when it can.

        Partitions may be added, but a key then moves to another one: where keys keep an order, what is new would overtake what waits.
        """
        if passive or (topic.partitions or 0) < actual:
            return ""
        if not topic.ordered or self._options.force or not (backlog := self._backlog(topic.name)):
            return None
        return (
            f": it is ordered, and {backlog} jobs wait in it that newer ones of their keys would overtake; "
            "let them be done first, or say partitions.force=yes"
        )

    def _backlog(self, topic: str) -> int:
        """How many of its jobs are not done, for the group that is furthest behind."""
        groups = {reader for carrier in self._registry.all().values() if carrier.topic == topic for reader in carrier.readers}
        return waiting(self._admin.get(), topic, sorted(groups), None)

    def _configs(self, names: Iterable[str]) -> Mapping[str, Future[dict[str, ConfigEntry]]]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        return {resource.name: future for resource, future in self._admin.get().describe_configs(resources).items()} if resources else {}

    def _make(self, topics: Iterable[Topic], *, own: bool) -> None:
        copies = self._options.replication or -1
        new = [NewTopic(topic.name, topic.partitions or -1, copies, config=dict(topic.config)) for topic in [*([REGISTRY] if own else []), *topics]]
        for name, future in self._admin.get().create_topics(new, operation_timeout=PATIENCE).items() if new else ():
            result_of(future, f"topic {name!r}", but=KafkaError.TOPIC_ALREADY_EXISTS)  # another process was quicker
        self._await([topic.topic for topic in new])

    def _await(self, topics: Iterable[str]) -> None:
        """Until those who ask the cluster for these are not told any more that they do not exist: it spreads the word after it has answered."""
        late = time.monotonic() + PATIENCE
        for topic in topics:
            while not partitions_of(self._admin.get(), topic) and time.monotonic() < late:
                time.sleep(SPREAD)

    def _grow(self, topics: Iterable[Topic]) -> None:
        more = [NewPartitions(topic.name, topic.partitions or 1) for topic in topics]
        for name, future in self._admin.get().create_partitions(more).items() if more else ():
            result_of(future, f"topic {name!r}")

    def _register(self, expected: Iterable[Declared]) -> None:
        known = self._registry.all()
        self._registry.put(
            replace(carrier, groups=known[carrier.name].groups if carrier.name in known else ())  # or they would have done nothing yet
            for carrier in {carrier.name: carrier for carrier in expected}.values()
            if carrier.name not in known or replace(known[carrier.name], groups=()) != carrier
        )


def result_of(future: Future[dict[str, ConfigEntry]], place: str, *, but: int | None = None) -> dict[str, ConfigEntry]:
    """What the cluster says of `place`, within 15 s; nothing for an error with the code `but`. Raises our errors for all others."""
    try:
        return answer_of(future, PATIENCE, place)
    except KafkaException as failure:
        error: KafkaError = failure.args[0]
        if error.code() != but:
            raise translated(error, place) from None
        return {}
