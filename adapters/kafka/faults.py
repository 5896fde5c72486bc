"""What an error of librdkafka means to those above: an outcome for a message, an error of ours for everything else."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from confluent_kafka import KafkaError, KafkaException

from postroom.adapters.errors import AccessDenied, ConfigurationError, PostroomError, Unavailable
from postroom.adapters.seam import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

__all__ = ["DENIED", "MISSING", "OVERSIZED", "answer_of", "outcome_of", "translated", "translating", "undeclared"]

Answer = TypeVar("Answer")

DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - the library's public names for errors of its own start so
    }
)
MISSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})  # noqa: SLF001

OVERSIZED = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})

_FOR_GOOD = OVERSIZED | frozenset(
    {
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.POLICY_VIOLATION,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError._INVALID_ARG,  # noqa: SLF001
    }
)
_FOR_NOW = frozenset(
    {
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError._QUEUE_FULL,  # noqa: SLF001
        KafkaError._INVALID_DIFFERENT_RECORD,  # noqa: SLF001 - it was in one batch with a record that was refused
    }
)
_MISTAKES = frozenset(
    {
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_REQUEST,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_GROUP_ID,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError._INVALID_ARG,  # noqa: SLF001
    }
)


def outcome_of(error: KafkaError, queue: str, *, keyless: bool = False) -> Outcome:
    """The outcome of a record whose delivery report holds this error. What is in no list is unknown: it may have arrived."""
    code = error.code()
    if code in MISSING:
        return undeclared(queue)
    if code in _FOR_GOOD:
        hint = "; a compacted topic takes no message without an ordering key" if keyless and code == KafkaError.INVALID_RECORD else ""
        return Outcome(Verdict.REFUSED, f"the broker refuses it: {error.str()}{hint}")
    return Outcome(Verdict.BUSY if code in _FOR_NOW else Verdict.UNKNOWN, error.str())


def undeclared(queue: str) -> Outcome:
    """The outcome of a message to a queue that is not there."""
    return Outcome(Verdict.BUSY, f"queue {queue!r} is not declared; run `postroom declare ...` or start its worker")


def translated(error: KafkaError, place: str) -> PostroomError:
    """Our error for one of the client's, about `place` (a topic, a group, the servers)."""
    told = f"{place}: {error.str()}"
    if error.code() in DENIED:
        return AccessDenied(told)
    return ConfigurationError(told) if error.code() in _MISTAKES else Unavailable(told)


def answer_of(future: Future[Answer], seconds: float, place: str) -> Answer:
    """What the admin client was asked for. Raises KafkaException, and Unavailable when there is no answer for so long."""
    try:
        return future.result(seconds)
    except TimeoutError:
        raise Unavailable(f"{place}: no answer for {seconds:g} s") from None


@contextmanager
def translating(place: str) -> Iterator[None]:
    """Raise our errors for the client's."""
    try:
        yield
    except KafkaException as failure:
        raise translated(failure.args[0], place) from None
