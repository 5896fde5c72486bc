"""Reading a partition of a topic from an offset to its end, outside of any group."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from postroom.adapters.errors import Unavailable

from .faults import MISSING, translated, translating
from .process import PerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import confluent_kafka

    Record = confluent_kafka.Message[Any, Any]

__all__ = ["Reader"]

PATIENCE = 10.0
"""How long (seconds) a server may be silent."""
BATCH = 500


class Reader:
    """One client, used by one thread at a time. Commits nothing, joins nothing."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._clients = PerProcess(lambda: Consumer(dict(config)))
        self._lock = threading.RLock()

    def read(self, topic: str, start: int, partition: int = 0) -> Iterator[Record]:
        """Yield the records from `start` to what is the end now; nothing of a topic that is not there. Raises Unavailable."""
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

    def close(self) -> None:
        """End the client. May be called twice."""
        with self._lock:
            if (client := self._clients.drop()) is not None:
                client.close()

    @staticmethod
    def _bounds(client: Consumer, topic: str, partition: int) -> tuple[int, int]:
        try:
            return client.get_watermark_offsets(TopicPartition(topic, partition), timeout=PATIENCE)
        except KafkaException as failure:
            if failure.args[0].code() in MISSING:
                return 0, 0
            raise


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
            elif not error.retriable():
                raise translated(error, topic)
    raise Unavailable(f"{topic}: no answer for {PATIENCE:g} s")
