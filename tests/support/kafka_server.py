"""A Kafka that a test may break, and questions to it that the adapter has no part in."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager

from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

__all__ = ["Server"]

START_SECONDS = 120
PATIENCE = 30.0


class Server:
    """A broker in a container of its own, by its address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        self._container = _docker("ps", "--quiet", "--filter", f"publish={address.rpartition(':')[2]}").strip()

    def kill(self) -> None:
        """SIGKILL."""
        _docker("kill", self._container)

    def mend(self) -> None:
        """Start it if a test has left it dead."""
        if _docker("inspect", "--format", "{{.State.Running}}", self._container).strip() != "true":
            self.start()

    def start(self) -> None:
        """Start it again after `kill`, and wait until it answers: some seconds."""
        _docker("start", self._container)
        late = time.monotonic() + START_SECONDS
        while not self._answers():
            assert time.monotonic() < late, "Kafka did not start again"

    def offsets(self, group: str, topic: str) -> dict[int, int]:
        """What a classic group has committed, by partition: only where it has."""
        admin = self.admin
        partitions = [TopicPartition(topic, number) for number in admin.list_topics(topic, timeout=PATIENCE).topics[topic].partitions]
        (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, partitions)]).values()
        return {place.partition: place.offset for place in future.result(PATIENCE).topic_partitions if place.offset >= 0}

    def members(self, group: str) -> int:
        """How many members a classic group has; 0 while it is being rebalanced."""
        (future,) = self.admin.describe_consumer_groups([group]).values()
        found = future.result(PATIENCE)
        return len(found.members) if found.state is ConsumerGroupState.STABLE else 0

    def ends(self, topic: str, partitions: int) -> list[int]:
        """The offsets behind the last record of each partition; 0 for one that is not there yet."""
        wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}
        return [_offset(future) for future in self.admin.list_offsets(wanted).values()]

    def set_group(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Put a group without members at these offsets."""
        wanted = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
        (future,) = self.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)]).values()
        future.result(PATIENCE)

    def forget_before(self, topic: str, partition: int, offset: int) -> None:
        """As retention does: what lies before `offset` is gone."""
        for future in self.admin.delete_records([TopicPartition(topic, partition, offset)]).values():
            future.result(PATIENCE)

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until it is gone."""
        admin = self.admin
        for future in admin.delete_topics([topic]).values():
            future.result(PATIENCE)
        late = time.monotonic() + PATIENCE
        while topic in admin.list_topics(timeout=PATIENCE).topics:
            assert time.monotonic() < late, "the topic is still there"
            time.sleep(0.1)

    @contextmanager
    def watched(self, group: str, topic: str) -> Iterator[list[dict[int, int]]]:
        """The offsets of a group, as they were several times a second."""
        seen: list[dict[int, int]] = []
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(0.3):
                seen.append(self.offsets(group, topic))

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield seen
        finally:
            ended.set()
            thread.join()

    def _answers(self) -> bool:
        try:
            self.admin.list_topics(timeout=5)
        except KafkaException:
            return False
        return True


def _offset(future: Future[ListOffsetsResultInfo]) -> int:
    try:
        return future.result(PATIENCE).offset
    except KafkaException:
        return 0


def _docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout
