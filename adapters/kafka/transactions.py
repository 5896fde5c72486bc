"""The right to handle the letters of a topic. One client at a time has it: whoever takes it fences off who had it before."""

from __future__ import annotations

import hashlib
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer

from postroom.adapters.errors import ConfigurationError, Unavailable

from .faults import translated
from .process import PerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Transactions"]

Result = TypeVar("Result")

PATIENCE = 30.0
ABORT = 5.0
_FENCED = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001 - the library's public names for errors of its own start so
        KafkaError._FATAL,  # noqa: SLF001 - what a client says from then on
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
    }
)
IDLE = 1.0
"""How long (seconds) after a transaction an operator counts as being at work: a discard is one for each letter."""
_BRIEF = {"transaction.timeout.ms": 15_000, "message.timeout.ms": 10_000}
"""A replay whose process died holds up the readers of what it wrote to: no longer than this, and until the next replay begins."""


class Transactions:
    """Thread-safe, one at a time. The client is kept for a moment, in case that another transaction for its topic follows."""

    def __init__(self, config: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        self._topic, self._until = "", 0.0
        self._clients = PerProcess(self._begun)

    def run(self, topic: str, work: Callable[[Producer], Result]) -> Result:
        """Have `work` look, and produce, while nobody else's transaction for this topic is open; commit. Blocks for about a minute at most.

        Raises AccessDenied and Unavailable, also when somebody else has begun meanwhile: nothing of it has happened, or all, and the next look tells.
        """
        with self._lock:
            try:
                done = self._transaction(self._client(topic), work)
            except BaseException as failure:
                self._clients.drop()
                if isinstance(failure, KafkaException):
                    raise _told(failure.args[0], topic) from None
                raise
            self._until = self._clock() + IDLE
            return done

    def close(self) -> None:
        """End the client, or have it ended with the transaction that it is in. May be called twice, from any thread."""
        self._clients.drop()

    def _client(self, topic: str) -> Producer:
        if topic != self._topic or self._clock() > self._until:
            self._clients.drop()
        self._topic = topic
        return self._clients.get()

    def _begun(self) -> Producer:
        name = hashlib.blake2b(self._topic.encode(), digest_size=16).hexdigest()
        client = Producer({**self._config, **_BRIEF, "transactional.id": f"postroom-letters-{name}"})
        client.init_transactions(PATIENCE)
        return client

    @staticmethod
    def _transaction(client: Producer, work: Callable[[Producer], Result]) -> Result:
        client.begin_transaction()
        try:
            done = work(client)
            client.commit_transaction(PATIENCE)
        except BaseException:
            with suppress(KafkaException):  # else it holds up readers, as one that was killed does
                client.abort_transaction(ABORT)
            raise
        return done


def _told(error: KafkaError, topic: str) -> Exception:
    if error.code() in _FENCED:
        return Unavailable(f"{topic}: another operator has begun meanwhile, so nothing of this was done; run it again ({error.str()})")
    told = translated(error, topic)
    return told if not isinstance(told, ConfigurationError) else Unavailable(str(told))
