"""Reading a topic to its end, outside of any group."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from postroom.adapters import Unavailable
from postroom.adapters.kafka import depth, topology
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


def test_a_cluster_that_has_fallen_silent_is_told_as_one_that_is_away(monkeypatch):
    monkeypatch.setattr(depth, "PATIENCE", 0.01)
    monkeypatch.setattr(topology, "PATIENCE", 0.01)
    silent = SimpleNamespace(describe_topics=lambda _: {"emails": Future()}, list_consumer_group_offsets=lambda _: {"mail": Future()})
    with pytest.raises(Unavailable, match=r"topic 'emails': no answer for 0\.01 s"):
        depth.topic_id_of(silent, "emails")
    with pytest.raises(Unavailable, match="group 'mail': no answer"):
        depth._committed(silent, "mail", [TopicPartition("emails", 0)])  # noqa: SLF001 - behind calls that would be silent first
    with pytest.raises(Unavailable, match="the brokers: no answer"):
        topology.result_of(Future(), "the brokers")
