"""How many jobs wait: from the ends of a topic's partitions, and from what a group has done of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import OffsetSpec

from .faults import MISSING, answer_of, translated, translating
from .reader import partitions_of
from .share_state import STATE_TOPIC, Progress, as_java_writes_it

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from confluent_kafka.admin import AdminClient

    from .share_state import ShareState

__all__ = ["topic_id_of", "waiting"]

PATIENCE = 10.0


def waiting(admin: AdminClient, topic: str, groups: Sequence[str], state: ShareState | None) -> int:
    """Count the offsets that are not done yet for classic groups, or with `state` for share groups: for the group that is furthest behind.

    Offsets that hold no record (compaction, marks of transactions) count until they are passed.
    """
    partitions = _partitions(admin, topic)
    first, last = _offsets(admin, partitions, OffsetSpec.earliest()), _offsets(admin, partitions, OffsetSpec.latest())
    done = [_settled(admin, state, group, partitions) if state else _committed(admin, group, partitions) for group in groups] or [{}]
    return max(sum(_left(first[number], end, progress.get(number)) for number, end in last.items()) for progress in done)


def _left(first: int, end: int, progress: Progress | None) -> int:
    start, completed = progress or (0, 0)
    return end - max(start, first) - completed


def _partitions(admin: AdminClient, topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in partitions_of(admin, topic)]


def _offsets(admin: AdminClient, partitions: Iterable[TopicPartition], spec: OffsetSpec) -> dict[int, int]:
    asked = dict.fromkeys(partitions, spec)
    with translating("offsets"):
        return {
            place.partition: answer_of(future, PATIENCE, "offsets").offset for place, future in (admin.list_offsets(asked) if asked else {}).items()
        }


def _committed(admin: AdminClient, group: str, partitions: list[TopicPartition]) -> Mapping[int, Progress]:
    if not partitions:
        return {}
    (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, partitions)]).values()
    try:
        found = answer_of(future, PATIENCE, f"group {group!r}").topic_partitions
    except KafkaException as failure:
        if failure.args[0].code() in MISSING:
            return {}
        raise translated(failure.args[0], f"group {group!r}") from None
    return {place.partition: Progress(place.offset, 0) for place in found if place.offset >= 0}


def _settled(admin: AdminClient, state: ShareState, group: str, partitions: list[TopicPartition]) -> Mapping[int, Progress]:
    homes = len(_partitions(admin, STATE_TOPIC))
    if not homes or not partitions:  # no share group has ever stored anything
        return {}
    topic_id = topic_id_of(admin, partitions[0].topic) or ""
    return {place.partition: state.progress(group, topic_id, place.partition, homes) for place in partitions}


def topic_id_of(admin: AdminClient, topic: str) -> str | None:
    """The identity of a topic, which a new one of the same name does not have; None when it is not there. Raises AccessDenied, Unavailable."""
    (future,) = admin.describe_topics(TopicCollection([topic])).values()
    try:
        return as_java_writes_it(str(answer_of(future, PATIENCE, f"topic {topic!r}").topic_id))
    except KafkaException as failure:
        if failure.args[0].code() in MISSING:
            return None
        raise translated(failure.args[0], f"topic {topic!r}") from None
