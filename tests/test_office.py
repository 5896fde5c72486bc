"""Dead letters from a program, and the queues of a broker that lists none."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from postroom.adapters.errors import ConfigurationError
from postroom.adapters.seam import DeadLetters, Queue
from postroom.consumers import Ambiguous, DeadLetterOffice, Fate, Selection, Unproven
from postroom.consumers.known import carriers_known
from support.postrooms import Postroom, postroom_at


@pytest.fixture
def room(sqlite_database_url: str) -> Iterator[Postroom]:
    with postroom_at(sqlite_database_url, "memory:") as made:
        yield made


@pytest.fixture
def office(room: Postroom) -> DeadLetterOffice:
    return DeadLetterOffice(room.jobs, room.engine, room.adapter)


def keys(office: DeadLetterOffice, selection: Selection | None = None) -> list[str]:
    return [letter.envelope.key if letter.envelope else "?" for letter in office.list(selection or Selection())]


def test_what_was_given_up_is_listed_chosen_and_replayed(room: Postroom, office: DeadLetterOffice):
    room.kill_jobs("order-1", "order-2")
    assert sorted(keys(office)) == ["order-1", "order-2"]
    assert office.replay(Selection(names=frozenset({"order-2"}))) == {Fate.REPLAYED: 1}
    room.drain()
    assert (room.sent, keys(office)) == ({"order-2": 1}, ["order-1"])


def test_what_the_broker_refused_is_there_too(room: Postroom, office: DeadLetterOffice):
    room.enqueue("order-1")
    room.park("order-1", "too large")
    assert [(letter.source, letter.error) for letter in office.list()] == [("outbox", "too large")]


def test_what_is_discarded_is_returned_and_gone(room: Postroom, office: DeadLetterOffice):
    room.kill_jobs("order-1")
    assert [letter.message.body for letter in office.discard("a typo")] == [b"null"]
    assert keys(office) == []


def test_a_canary_that_nobody_does_keeps_the_others(room: Postroom, office: DeadLetterOffice):
    room.kill_jobs("order-1", "order-2")
    with pytest.raises(Unproven, match="not finished"):
        office.replay(canary=0.1)
    assert len(keys(office)) == 1


def test_what_is_the_id_of_one_letter_and_the_key_of_another_is_not_acted_on(room: Postroom, office: DeadLetterOffice):
    room.kill_jobs("2")
    room.enqueue("order-1")
    room.park("order-1", "too large")
    two = frozenset({"2"})
    assert {(letter.source, letter.id == "2") for letter in office.list(Selection(names=two))} == {("queue", False), ("outbox", True)}
    told = r"'2' names 2 letters, in emails \(outbox\), emails \(queue\): name the job by its id"
    for act in (office.replay, lambda selection: office.discard("a typo", selection)):
        for selection in (Selection(names=two), Selection(names=two, limit=1)):
            with pytest.raises(Ambiguous, match=told):
                act(selection)
    assert issubclass(Ambiguous, ConfigurationError)
    assert len(keys(office)) == 2
    assert office.replay(Selection(names=two, error="too large")) == {Fate.REPLAYED: 1}
    assert keys(office) == ["2"]


def test_a_key_names_all_letters_about_it(room: Postroom, office: DeadLetterOffice):
    room.kill_jobs("order-1")
    room.enqueue("order-1")
    room.drain()
    assert office.replay(Selection(names=frozenset({"order-1"}))) == {Fate.REPLAYED: 2}


class Discreet:
    """A broker that lists only what it was asked about, as RabbitMQ."""

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter
        self._asked: set[str] = set()
        self.capabilities = replace(adapter.capabilities, lists=False)

    def dead_letters(self, queue: str) -> DeadLetters:
        found = self._adapter.dead_letters(queue)
        self._asked.add(queue)
        return found

    def carriers(self) -> Sequence[str]:
        return sorted(self._asked)


def test_where_the_broker_lists_none_its_queues_are_those_of_outbox_and_ledger_that_it_has(room: Postroom):
    room.adapter.ensure([Queue(name="quiet"), Queue(name="named"), Queue(name="topic", groups=("one",))])
    room.kill_jobs("order-1")
    assert carriers_known(room.engine, Discreet(room.adapter)) == ["emails"]
    assert carriers_known(room.engine, Discreet(room.adapter), named=["named", "gone", "topic"]) == ["emails", "named"]


def test_where_the_broker_lists_them_nothing_else_is_asked(room: Postroom):
    room.adapter.ensure([Queue(name="quiet")])
    assert list(carriers_known(room.engine, room.adapter)) == ["emails", "quiet"]
