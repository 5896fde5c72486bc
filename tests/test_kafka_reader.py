"""Reading a topic to its end, outside of any group."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from postroom.adapters.kafka.reader import Reader


class Answers:
    """A client that answers in this order."""

    def __init__(self, *answers: int | tuple[int, int]) -> None:
        self.left = [*answers]

    def get_watermark_offsets(self, _partition: TopicPartition, timeout: float) -> tuple[int, int]:
        assert timeout > 0
        answer = self.left.pop(0)
        if isinstance(answer, int):
            raise KafkaException(KafkaError(answer))
        return answer


def test_the_leader_of_a_topic_that_was_made_a_moment_ago_is_waited_for():
    client = Answers(KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, (3, 9))
    assert Reader._bounds(client, "postroom.queues", 0) == (3, 9)  # noqa: SLF001 - the one question that can be too early


def test_any_other_failure_is_told_at_once():
    client = Answers(KafkaError.TOPIC_AUTHORIZATION_FAILED, (3, 9))
    with pytest.raises(KafkaException):
        Reader._bounds(client, "postroom.queues", 0)  # noqa: SLF001 - as above
    assert client.left == [(3, 9)]
