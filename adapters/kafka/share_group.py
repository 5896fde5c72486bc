"""What the cluster keeps of a share group: how long it locks a record, how often it delivers one, where it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from postroom.adapters.errors import ConfigurationError, PostroomError, TopologyMismatch
from postroom.adapters.seam import Hold

from .topology import PATIENCE, result_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka.admin import AdminClient

__all__ = ["DELIVERIES", "MARGIN", "Limits", "compare_group", "configure_group"]

DELIVERIES = 10
"""How often a share group may deliver a record: the most that a broker allows. On the last but one we send a fresh copy, so none is ever dropped."""
MARGIN = 2.0
"""Seconds before its locks run out at which a round ends."""

_LOCK, _LIMIT = "share.record.lock.duration.ms", "share.delivery.count.limit"
_SHORTEST, _LONGEST = 15.0, 60.0
"""The locks (seconds) that a cluster allows unless its brokers are configured otherwise."""


class Limits(NamedTuple):
    """Of a share group: how long (seconds) a record is locked for who got it, how often it may be delivered, the longest lock there can be."""

    lock: float
    deliveries: int
    longest: float = _LONGEST

    @property
    def hold(self) -> float:
        """How long (seconds) a delivery can be held: what is not settled then is released, so that no lock ever runs out."""
        return self.lock - MARGIN

    def explained(self, group: str) -> Hold:
        """The same for those above."""
        remedy = "" if self.lock >= self.longest else f", the queue a longer lease (up to {self.longest:g} s on this cluster)"
        so = f"give the handler a timeout of at most {self.hold:g} s{remedy}, or use mode=classic"
        return Hold(self.hold, f"group {group!r} has {_LOCK}={self.lock * 1000:.0f}; {so}")


def configure_group(admin: AdminClient, group: str, lease: float) -> Limits:
    """Have a share group begin with the oldest record and lock a delivery for about `lease` seconds. Return what is in force then.

    A lock that was configured before is lengthened and never shortened: members that rely on it may be at work.
    Raises ConfigurationError or Unavailable.
    """
    found, longest = _group_config(admin, group), _longest_lock(admin)
    changes = _changes(found, _lock_for(lease, longest))
    if changes:
        resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=changes)
        result_of(admin.incremental_alter_configs([resource])[resource], f"group {group!r}")
        found = _group_config(admin, group)
    return _limits(found, longest)


def compare_group(admin: AdminClient, group: str, lease: float) -> Limits:
    """The same, and nothing is changed: raise TopologyMismatch that names each difference."""
    found, longest = _group_config(admin, group), _longest_lock(admin)
    pairs = [(name, value, found[name].value) for name, value in _wanted(found, _lock_for(lease, longest)).items()]
    differences = [f"expected {name} {value!r}, but it is there with {name} {actual!r}" for name, value, actual in pairs if actual != value]
    if differences:
        raise TopologyMismatch(f"group {group!r}: {', '.join(differences)}: `postroom declare` or the start of a worker sets it")
    return _limits(found, longest)


def _limits(found: Mapping[str, ConfigEntry], longest: float) -> Limits:
    limit = found[_LIMIT].value if _LIMIT in found else None
    return Limits(int(found[_LOCK].value or 0) / 1000, int(limit or 5), longest)


def _lock_for(lease: float, longest: float) -> float:
    return min(max(lease, _SHORTEST), longest)


def _wanted(found: Mapping[str, ConfigEntry], lock: float) -> Mapping[str, str]:
    """As far as this cluster knows it."""
    before = found[_LOCK]
    kept = 0 if before.is_default else int(before.value or 0)
    wanted = {
        "share.auto.offset.reset": "earliest",
        _LOCK: str(max(round(lock * 1000), kept)),
        _LIMIT: str(DELIVERIES),
        "share.isolation.level": "read_committed",
    }
    return {name: value for name, value in wanted.items() if name in found}


def _changes(found: Mapping[str, ConfigEntry], lock: float) -> list[ConfigEntry]:
    return [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in _wanted(found, lock).items()
        if found[name].value != value or found[name].is_default
    ]


def _group_config(admin: AdminClient, group: str) -> Mapping[str, ConfigEntry]:
    resource = ConfigResource(ResourceType.GROUP, group)
    found = result_of(admin.describe_configs([resource])[resource], f"group {group!r}")
    if _LOCK not in found:
        raise ConfigurationError("this cluster has no share groups: use mode=classic")
    return found


def _longest_lock(admin: AdminClient) -> float:
    """What the brokers allow. Who may not ask them is told by their default."""
    try:
        broker = next(iter(admin.list_topics(timeout=PATIENCE).brokers))
        resource = ConfigResource(ResourceType.BROKER, str(broker))
        found = result_of(admin.describe_configs([resource])[resource], "the brokers").get(f"group.{_LOCK.replace('share.', 'share.max.')}")
    except (PostroomError, KafkaException):
        return _LONGEST
    return int(found.value) / 1000 if found and found.value else _LONGEST
