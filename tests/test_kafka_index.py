"""Which letters wait: what the records of a dead-letter topic say, whoever reads them, and whenever they began to."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.adapters import Message
from postroom.adapters.kafka import index
from postroom.adapters.kafka.entry import Entry, Source
from postroom.adapters.kafka.index import CARRIER, DEATH, Index, Mark
from postroom.adapters.kafka.letters import letter_of

Headers = list[tuple[str, str | bytes | None]]


class Log:
    """A dead-letter topic, as a reader sees it."""

    def __init__(self) -> None:
        self.records: list[Headers] = []
        self.start = 0

    def read(self, _topic: str, start: int) -> Iterator[confluent_kafka.Message]:
        for offset in range(max(start, self.start), len(self.records)):
            headers = [(name, value.encode() if isinstance(value, str) else value) for name, value in self.records[offset]]
            yield confluent_kafka.Message(topic="emails.dlq", partition=0, offset=offset, value=b"", headers=headers)

    def first(self, _topic: str) -> int:
        return self.start

    def bury(self, death: str | None, carrier: str = "emails") -> None:
        self.records.append([(CARRIER, carrier), *([(DEATH, death)] if death else [])])

    def mark(self, mark: Mark) -> None:
        self.records.append([(CARRIER, "emails"), *mark.headers])

    def seen_by(self, reader: Index, topic_id: str = "one") -> list[int]:
        reader.read_on(self, "emails.dlq", topic_id)
        return [*reader.open("emails")]


@pytest.fixture
def log() -> Log:
    return Log()


def handle(log: Log, reader: Index, *offsets: int) -> None:
    log.seen_by(reader)
    log.mark(reader.mark_of("emails", offsets))


def test_letters_about_one_death_are_one_letter_and_handled_together(log):
    for death in ("a", "b", "a", "a"):
        log.bury(death)
    assert log.seen_by(Index()) == [0, 1]
    handle(log, Index(), 0)
    assert log.seen_by(Index()) == [1]


def test_a_letter_about_a_death_that_was_handled_before_is_handled_too(log):
    log.bury("a")
    handle(log, Index(), 0)
    log.bury("a")
    log.bury("b")
    assert log.seen_by(Index()) == [3]
    handle(log, Index(), 3)
    log.start = 2  # the first mark is gone, and what it told is told by the second
    assert log.seen_by(Index()) == []


def test_of_one_death_the_letter_that_retention_has_left_counts(log):
    reader = Index()
    log.bury("a")
    log.bury("a")
    assert log.seen_by(reader) == [0]
    log.start = 1
    assert log.seen_by(reader) == log.seen_by(Index()) == [1]


def test_letters_of_an_older_version_do_not_tell_of_which_death_and_are_one_each(log):
    log.bury(None)
    log.bury(None)
    assert log.seen_by(Index()) == [0, 1]
    log.records.append([(CARRIER, "emails"), ("postroom-dead-handled", "[0]")])  # as that version marks them
    assert log.seen_by(Index()) == [1]


def test_a_topic_that_was_made_again_is_another(log):
    reader = Index()
    log.bury("a")
    handle(log, reader, 0)
    assert log.seen_by(reader) == []
    log.records[:] = []
    log.bury("a")
    assert log.seen_by(reader, topic_id="two") == [0]


def test_several_carriers_may_have_one_topic_of_letters(log):
    log.bury("a")
    log.bury("b", "invoices")
    reader = Index()
    assert (log.seen_by(reader), reader.open("invoices"), reader.open("nobody")) == ([0], [1], [])


def test_what_somebody_may_still_need_is_not_disposable(log, monkeypatch):
    monkeypatch.setattr(index, "KEPT", 2)
    reader = Index()
    for death in "abcdef":
        log.bury(death)
    assert (log.seen_by(reader)[0], reader.disposable) == (0, 0)
    handle(log, reader, 0, 1)
    assert (log.seen_by(reader)[0], reader.disposable) == (2, 2)
    handle(log, reader, 2, 3, 4, 5)
    assert (log.seen_by(reader), len(log.records), reader.disposable) == ([], 8, 6)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("bury"), st.sampled_from(["a", "b", "c", "d", None])),
        st.tuples(st.just("handle"), st.sets(st.integers(0, 3), max_size=3)),
        st.tuples(st.just("lose"), st.integers(1, 3)),
        st.tuples(st.just("look"), st.none()),
    ),
    max_size=30,
)


@given(steps=STEPS)
def test_all_readers_see_the_same_whenever_they_began(steps):
    log, old = Log(), Index()
    for what, how in steps:
        if what == "bury":
            log.bury(how)
        elif what == "lose":
            log.start = min(len(log.records), log.start + how)
        elif what == "look":
            log.seen_by(old)
        else:
            there = log.seen_by(old)
            mark = old.mark_of("emails", [there[place] for place in how if place < len(there)])
            log.mark(mark)
            old.note(mark, old.next)  # before it can be read
            assert not set(there) & set(old.open("emails")) & set(mark.offsets)
        assert log.seen_by(old) == log.seen_by(Index())


@given(handled=st.lists(st.integers(0, 9), unique=True))
def test_no_letter_that_was_not_handled_is_hidden_but_for_an_older_twin(handled):
    log, reader = Log(), Index()
    for number in range(10):
        log.bury(f"{number}")
    for offset in handled:
        handle(log, reader, offset)
    assert log.seen_by(reader) == [offset for offset in range(10) if offset not in handled]


def death_of(*, group: str = "mail", carrier: str = "emails", offset: int = 7, at: int = 1_700_000_000_123, value: bytes = b"x") -> str:
    record = confluent_kafka.Message(topic="emails", partition=3, offset=offset, key=b"k", value=value, timestamp=(1, at))
    source = Source(carrier=carrier, topic="emails", group=group, only=None, queue="emails", ordered=False, dead_letter="emails.dlq")
    place = SimpleNamespace(source=source, shelf=None, over=False)
    entry = Entry(place=place, offset=offset, record=record, message=Message(id="1", queue="emails", body=value), attempts=1)
    return str(dict(letter_of(entry, f"{offset} {at}").headers)[DEATH])


@pytest.mark.parametrize(
    "other", [{"group": "audit"}, {"carrier": "emails.audit"}, {"offset": 8}, {"at": 1_700_000_000_124}, {"value": b"y"}], ids=str
)
def test_a_death_is_that_of_one_record_in_one_group_and_a_topic_that_was_made_again_has_others_at_its_places(other):
    assert death_of() == death_of()
    assert death_of() != death_of(**other)
