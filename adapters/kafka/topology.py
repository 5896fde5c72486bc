"""Declaring: topics, dead-letter topics and share groups, compared first and made then."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic, ResourceType

from postroom.adapters.errors import ConfigurationError, TopologyMismatch

from .config import LARGEST_RECORD, LETTER_ROOM
from .faults import translated, translating
from .registry import TOPIC, Declared, declared_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from confluent_kafka.admin import AdminClient

    from postroom.adapters.seam import Queue

    from .options import Options
    from .process import PerProcess
    from .registry import Registry

__all__ = ["DELIVERIES", "Limits", "Topology", "configure_group"]

PATIENCE = 15.0
DELIVERIES = 10
"""How often a share group may deliver a record: the most that a broker allows. On the last but one we send a fresh copy, so none is ever dropped."""

_COMPARED = ("topic", "ordered", "dead_letter")


@dataclass(frozen=True, slots=True)
class _Topic:
    """A topic as it should be."""

    name: str
    ordered: bool
    partitions: int | None
    config: Mapping[str, str]


class Topology:
    """What is declared, against what is there."""

    def __init__(self, admin: PerProcess[AdminClient], registry: Registry, options: Options) -> None:
        self._admin = admin
        self._registry = registry
        self._options = options

    def ensure(self, queues: Sequence[Queue], *, passive: bool) -> None:
        """Compare all, then make what is missing. Raises TopologyMismatch that names each difference; nothing is changed then."""
        expected = [carrier for queue in queues for carrier in declared_by(queue)]
        topics = {topic.name: topic for carrier in expected for topic in self._topics(carrier)}
        counts = self._partitions()
        differences = [*self._compare_carriers(expected, counts, passive=passive), *self._compare_topics(topics.values(), counts)]
        if differences:
            raise TopologyMismatch("; ".join(differences))
        if not passive:
            self._make([topic for topic in topics.values() if topic.name not in counts], own=TOPIC not in counts)
            self._grow(topic for topic in topics.values() if topic.name in counts and (topic.partitions or 0) > counts[topic.name])
            self._register(expected)

    def require(self, carriers: Iterable[Declared]) -> None:
        """Raise ConfigurationError when a declared carrier's topic has gone."""
        counts = self._partitions()
        for carrier in carriers:
            if carrier.topic not in counts:
                raise ConfigurationError(
                    f"queue {carrier.name!r} is declared, but its topic {carrier.topic!r} is gone: declare it again with ensure()"
                )

    def is_reachable(self) -> bool:
        """Whether the cluster answers, within a second."""
        try:
            self._admin.get().list_topics(TOPIC, timeout=1.0)
        except KafkaException:
            return False
        return True

    def _topics(self, carrier: Declared) -> Iterable[_Topic]:
        sized = {"max.message.bytes": str(LARGEST_RECORD)}
        yield _Topic(carrier.topic, carrier.ordered, self._options.partitions, {**sized, **self._options.topic})
        yield _Topic(carrier.dead_letter, False, 1, {"max.message.bytes": str(LARGEST_RECORD + LETTER_ROOM), "retention.ms": "-1"})  # noqa: FBT003

    def _partitions(self) -> dict[str, int]:
        with translating(self._options.servers):
            found = self._admin.get().list_topics(timeout=PATIENCE).topics
        return {name: len(topic.partitions) for name, topic in found.items() if topic.error is None}

    def _compare_carriers(self, expected: Iterable[Declared], counts: Mapping[str, int], *, passive: bool) -> Iterable[str]:
        declared = dict(self._registry.all())
        for carrier in expected:
            there = declared.setdefault(carrier.name, carrier) if not passive else declared.get(carrier.name)
            if there is None:
                yield f"queue {carrier.name!r}: expected it to be declared, and it is not there"
                continue
            for name in _COMPARED:
                ours, theirs = getattr(carrier, name), getattr(there, name)
                if ours != theirs:
                    yield f"queue {carrier.name!r}: expected {name} {ours!r}, but it is there with {name} {theirs!r}"
            for topic in sorted({carrier.topic, carrier.dead_letter} - {*counts}) if passive else ():
                yield f"queue {carrier.name!r}: expected its topic {topic!r}, and it is not there"

    def _compare_topics(self, topics: Iterable[_Topic], counts: Mapping[str, int]) -> Iterable[str]:
        """Partitions may be added, but not to a topic whose keys keep an order: they would move, and overtake what waits."""
        there = [topic for topic in topics if topic.name in counts]
        for topic in there:
            actual = counts[topic.name]
            if topic.partitions is not None and (topic.partitions < actual or (topic.ordered and topic.partitions != actual)):
                yield f"topic {topic.name!r}: expected partitions {topic.partitions}, but it is there with partitions {actual}"
        asked = {topic.name: topic.config for topic in there if self._options.topic and topic.config.items() >= self._options.topic.items()}
        for name, actual_config in self._configs(asked).items():
            for option, value in self._options.topic.items():
                if actual_config.get(option) != value:
                    yield f"topic {name!r}: expected {option} {value!r}, but it is there with {option} {actual_config.get(option)!r}"

    def _configs(self, names: Iterable[str]) -> dict[str, dict[str, str | None]]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        if not resources:
            return {}
        futures = self._admin.get().describe_configs(resources)
        return {resource.name: {name: entry.value for name, entry in _result(future).items()} for resource, future in futures.items()}

    def _make(self, topics: Iterable[_Topic], *, own: bool) -> None:
        registry = [_Topic(TOPIC, True, 1, {"cleanup.policy": "compact"})] if own else []  # noqa: FBT003
        copies = self._options.replication or -1
        new = [NewTopic(topic.name, topic.partitions or -1, copies, config=dict(topic.config)) for topic in [*registry, *topics]]
        for future in self._admin.get().create_topics(new, operation_timeout=PATIENCE).values() if new else ():
            _result(future, but=KafkaError.TOPIC_ALREADY_EXISTS)  # another process was quicker

    def _grow(self, topics: Iterable[_Topic]) -> None:
        more = [NewPartitions(topic.name, topic.partitions or 1) for topic in topics]
        for future in self._admin.get().create_partitions(more).values() if more else ():
            _result(future)

    def _register(self, expected: Iterable[Declared]) -> None:
        known = self._registry.all()
        self._registry.put(
            carrier
            for carrier in {carrier.name: carrier for carrier in expected}.values()
            if carrier.name not in known or replace(known[carrier.name], groups=()) != carrier
        )


class Limits(NamedTuple):
    """Of a share group: how long (seconds) a record stays with the one who got it, and how often it may be delivered."""

    lock: float
    deliveries: int


def configure_group(admin: AdminClient, group: str, lease: float) -> Limits:
    """Have a share group begin with the oldest record and hide a delivery for about `lease` seconds.

    Return what is in force then. Raises ConfigurationError or Unavailable.
    """
    wanted = {
        "share.auto.offset.reset": "earliest",
        "share.record.lock.duration.ms": str(round(min(max(lease, 15.0), 60.0) * 1000)),
        "share.delivery.count.limit": str(DELIVERIES),
        "share.isolation.level": "read_committed",
    }
    found = _group_config(admin, group)
    changes = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in wanted.items()
        if name in found and found[name] != value
    ]
    if changes:
        resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=changes)
        _result(admin.incremental_alter_configs([resource])[resource])
        found = _group_config(admin, group)
    return Limits(int(found["share.record.lock.duration.ms"]) / 1000, int(found.get("share.delivery.count.limit", "5")))


def _group_config(admin: AdminClient, group: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.GROUP, group)
    return {name: entry.value or "" for name, entry in _result(admin.describe_configs([resource])[resource]).items()}


def _result(future: Future[dict[str, ConfigEntry]], *, but: int | None = None) -> dict[str, ConfigEntry]:
    try:
        return future.result(PATIENCE)
    except KafkaException as failure:
        error: KafkaError = failure.args[0]
        if error.code() != but:
            raise translated(error, "the cluster") from None
        return {}
