"""The producer: records in, one outcome for each from its own delivery report."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, Producer

from postroom.adapters.errors import Closed
from postroom.adapters.seam import Outcome, Verdict

from .faults import OVERSIZED, outcome_of
from .process import PerProcess
from .registry import TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from confluent_kafka import KafkaError, Message

    from .wire import Record

__all__ = ["Publisher"]

GRACE = 5.0
"""Seconds beyond the client's own timeout after which a record without a report counts as unknown."""
SLICE = 0.05
HELLO = 1.0
"""How long (seconds) a new client waits for a first answer of its cluster."""

_CONFIRMED = Outcome(Verdict.CONFIRMED)
_SILENCE = Outcome(Verdict.UNKNOWN, "no delivery report in time")
_FULL = Outcome(Verdict.BUSY, "the client's queue is full")
_CROWDED = Outcome(Verdict.BUSY, "too large together with others")


class Publisher:
    """Thread-safe. `bound` (seconds) is how long `send` blocks at most.

    The client is made at first use, anew in a forked child (threads do not survive a fork), and anew when it has met an error that it can't
    recover from. It is polled here and nowhere else, never from one of its own callbacks.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        make: Callable[[dict[str, Any]], Producer] = Producer,
        clock: Callable[[], float] = time.monotonic,
        pid: Callable[[], int] = os.getpid,
    ) -> None:
        self._clients = PerProcess(lambda: _greeted(make(dict(config))), pid)
        self._clock = clock
        self._closed = False
        self.bound = float(config["message.timeout.ms"]) / 1000 + GRACE

    def send(self, records: Sequence[Record | Outcome]) -> list[Outcome]:
        """Produce all at once, wait for every report, and return the outcomes in order. What is an outcome already stays one."""
        if not records:
            return []
        client, late = self._current(), self._clock() + self.bound
        batch = self._sent(client, records, late)
        for number in batch.oversized if len(records) > 1 else ():  # the client's own batch may have been too large, where the record is not
            batch.outcomes[number] = self._sent(client, [records[number]], late).outcomes[0] if self._clock() < late else _CROWDED
        return batch.outcomes

    def _sent(self, client: Producer, records: Sequence[Record | Outcome], late: float) -> _Batch:
        batch = _Batch(records)
        batch.produce(client, patient=lambda: self._clock() < late)
        while not batch.complete and self._clock() < late:
            client.flush(SLICE)
        if batch.fatal:
            self._clients.drop(client)
        return batch

    def close(self, patience: float) -> int:
        """Wait up to `patience` seconds for reports that are still out; return how many never came: those records are unknown."""
        self._closed = True
        client = self._clients.drop()
        return client.flush(patience) if client is not None else 0

    def _current(self) -> Producer:
        client = None if self._closed else self._clients.get()
        if client is None or self._closed:  # perhaps while the client was made
            self._clients.drop()
            raise Closed("this adapter is closed")
        return client


def _greeted(client: Producer) -> Producer:
    """A client that produces before it has a connection waits half a second for its producer id; one that has asked something first does not."""
    with suppress(KafkaException):
        client.list_topics(TOPIC, timeout=HELLO)
    return client


class _Batch:
    """The records of one call, and what is known of each. Reports may come in any thread that polls: they only append and assign."""

    def __init__(self, records: Sequence[Record | Outcome]) -> None:
        self._records = records
        self._settled: list[int] = []
        self.outcomes: list[Outcome] = [_SILENCE] * len(records)
        self.oversized: list[int] = []
        """Those that the broker found too large, perhaps together with others."""
        self.fatal = False

    @property
    def complete(self) -> bool:
        """Whether every record has its outcome."""
        return len(self._settled) >= len(self._records)

    def produce(self, client: Producer, *, patient: Callable[[], bool]) -> None:
        """Hand all records to the client; while its queue is full, wait for reports for as long as `patient` says."""
        for number, record in enumerate(self._records):
            if isinstance(record, Outcome):
                self._settle(number, record)
                continue
            try:
                while not self._fits(client, number, record):
                    if not patient():
                        self._settle(number, _FULL)
                        break
                    client.poll(SLICE)
            except KafkaException as failure:
                self._report(number, failure.args[0], None)
            except (TypeError, ValueError) as error:
                self._settle(number, Outcome(Verdict.REFUSED, f"it can't be sent: {error}"))

    def _fits(self, client: Producer, number: int, record: Record) -> bool:
        try:
            client.produce(record.topic, record.value, record.key, headers=record.headers, on_delivery=partial(self._report, number))
        except BufferError:
            return False
        return True

    def _report(self, number: int, error: KafkaError | None, sent: Message | None) -> None:
        if error is not None and error.code() in OVERSIZED and sent is not None:
            self.oversized.append(number)
        self._settle(number, _CONFIRMED if error is None else self._failure(number, error))

    def _failure(self, number: int, error: KafkaError) -> Outcome:
        self.fatal = self.fatal or error.fatal() or error.code() == error._FATAL  # noqa: SLF001
        record = self._records[number]
        return outcome_of(error, record.queue, keyless=record.key is None) if not isinstance(record, Outcome) else record

    def _settle(self, number: int, outcome: Outcome) -> None:
        self.outcomes[number] = outcome
        self._settled.append(number)
