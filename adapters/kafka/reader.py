"""Reading a partition of a topic from an offset to its end, outside of any group."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from postroom.adapters.errors import Unavailable

from .faults import DENIED, MISSING, translated, translating
from .process import PerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import confluent_kafka
    from confluent_kafka.admin import AdminClient

    Record = confluent_kafka.Message[Any, Any]

__all__ = ["Reader", "partitions_of"]

PATIENCE = 10.0
"""How long (seconds) a server may be silent."""
PAUSE = 0.05
"""How long (seconds) to wait before asking again for a leader."""
BATCH = 500

_MOVING = frozenset({KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE})


class Reader:
    """One client, used by one thread at a time. Commits nothing, joins nothing. `reach` raises when the cluster has never answered yet, nor now."""

    def __init__(self, config: Mapping[str, Any], reach: Callable[[], object] = lambda: None) -> None:
        self._clients = PerProcess(lambda: Consumer(dict(config)))
        self._reach = reach
        self._lock = threading.RLock()

    def read(self, topic: str, start: int, partition: int = 0) -> Iterator[Record]:
        """Yield the records from `start` to what is the end now; nothing of a topic that is not there. Raises Unavailable."""
        self._reach()
        with self._lock:
            client = self._clients.get()
            with translating(topic):
                first, end = self._bounds(client, topic, partition)
                if max(first, start) >= end:
                    return
                client.assign([TopicPartition(topic, partition, max(first, start))])
                try:
                    yield from _until_the_end(client, topic)
                finally:
                    client.unassign()

    def first(self, topic: str) -> int:
        """Where the oldest record is that retention has left. Raises Unavailable."""
        self._reach()
        with self._lock, translating(topic):
            return self._bounds(self._clients.get(), topic, 0)[0]

    def close(self) -> None:
        """End the client. May be called twice."""
        with self._lock:
            if (client := self._clients.drop()) is not None:
                client.close()

    @staticmethod
    def _bounds(client: Consumer, topic: str, partition: int) -> tuple[int, int]:
        """From where to where it goes; asked again while its leader is only just being found, as when it was made a moment ago."""
        late = time.monotonic() + PATIENCE
        while True:
            try:
                return client.get_watermark_offsets(TopicPartition(topic, partition), timeout=PATIENCE)
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
            if error.code() in MISSING:
                partitions_of(client, topic)  # which tells whether it is hidden from us
                return 0, 0
            if error.code() not in _MOVING or time.monotonic() > late:
                raise KafkaException(error)
            time.sleep(PAUSE)


def partitions_of(client: AdminClient | Consumer, topic: str) -> Sequence[int]:
    """The numbers of a topic's partitions; none when it is not there. Raises AccessDenied when we may not know, Unavailable."""
    with translating(f"topic {topic!r}"):
        found = client.list_topics(topic, timeout=PATIENCE).topics[topic]
    if found.error is not None and found.error.code() in DENIED:
        raise translated(found.error, f"topic {topic!r}")
    return [*found.partitions] if found.error is None else []


def _until_the_end(client: Consumer, topic: str) -> Iterator[Record]:
    late = time.monotonic() + PATIENCE
    while time.monotonic() < late:
        record = client.poll(0.5)
        if record is None:
            continue
        late = time.monotonic() + PATIENCE
        for each in (record, *client.consume(BATCH, 0)):
            error = each.error()
            if error is None:
                yield each
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                return
            elif not error.retriable() and error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # it looks for a coordinator that it does not need
                raise translated(error, topic)
    raise Unavailable(f"{topic}: no answer for {PATIENCE:g} s")
