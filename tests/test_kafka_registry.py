"""What is declared, read from a topic that others write to as well: older and newer versions, and whoever is mistaken."""

from __future__ import annotations

import json
from collections.abc import Iterator

import confluent_kafka
import pytest

from postroom.adapters import Queue
from postroom.adapters.kafka.registry import TOPIC, Registry, declared_by
from postroom.adapters.kafka.wire import Record
from postroom.adapters.seam import Outcome, Verdict


class Log:
    """The topic, as a reader and a publisher see it."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []

    def read(self, topic: str, start: int) -> Iterator[confluent_kafka.Message]:
        assert topic == TOPIC
        for offset, value in [*enumerate(self.values)][start:]:
            yield confluent_kafka.Message(topic=topic, partition=0, offset=offset, value=value)

    def send(self, records: list[Record]) -> list[Outcome]:
        self.values += [record.value for record in records]
        return [Outcome(Verdict.CONFIRMED)] * len(records)


@pytest.fixture
def log() -> Log:
    return Log()


def registry(log: Log) -> Registry:
    return Registry(log, log)


def test_a_record_that_is_no_queue_is_passed_over_and_told(log, caplog):
    log.values += [b"{}", b"not json", b"[]", b"7", b'{"groups":7}', b"[" * 100_000, None]
    registry(log).put(declared_by(Queue(name="emails")))
    assert list(registry(log).all()) == ["emails"]
    assert caplog.text.count("a record that is no queue is passed over") == 6


def test_what_a_newer_version_has_added_is_left_out(log):
    registry(log).put(declared_by(Queue(name="emails")))
    log.values[0] = json.dumps({**json.loads(log.values[0]), "version": 2, "colour": "red"}).encode()
    assert registry(log).require(["emails"])["emails"] == declared_by(Queue(name="emails"))[0]


def test_two_groups_that_note_themselves_at_once_are_both_noted(log):
    first, second = registry(log), registry(log)
    (carrier,) = declared_by(Queue(name="emails"))
    first.put([carrier])
    assert second.require(["emails"])["emails"].groups == ()
    first.note(carrier, "mail")
    second.note(carrier, "audit")
    assert registry(log).all()["emails"].groups == ("mail", "audit")
