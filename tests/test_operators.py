"""Two operators at once, or one whose command was killed: each letter is acted on by one of them, and no job is stranded or overtaken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from sqlalchemy import select

from postroom.adapters.memory import Memory
from postroom.consumers import Fate, Selection, lost
from postroom.consumers.dead import Letter, Place, as_seen, discarded, letters, places
from postroom.consumers.ledger import Ledger
from postroom.consumers.letters import QueuePlace
from postroom.consumers.lost import LostPlace
from postroom.consumers.replay import Replay, mark
from postroom.outbox.tables import outbox
from support.brokers import NATIVE
from support.inprocess import Office, office, office_on
from support.lines import Line


@pytest.fixture(params=["memory"])
def here(request: pytest.FixtureRequest) -> Iterator[Office]:
    with office_on(request.param, request.getfixturevalue) as made:
        yield made


def given_up(here: Office, *, type_: str = "t") -> Line:
    """A line whose first job has been given up."""
    line = Line(here, broken="a0")
    line.enqueue("a0", type_=type_)
    line.enqueue("a1", "a2")
    here.drain()
    return line


def mend(line: Line) -> None:
    line.broken = ""
    line.here.jobs.handler("unknown", queue=line.queue)(line.handle)


def listed(here: Office) -> Sequence[tuple[Place, Letter]]:
    return list(letters(places(here.engine, here.adapter, [here.name]), Selection()))


def replay(here: Office, meant: Any) -> Any:
    book = Ledger(here.engine, worker="operator", lease=30.0, native_delay=here.adapter.capabilities.native_delay)
    return Replay(here.engine, book).run(meant, progress=lambda _: None)


class Killed(BaseException):
    """As if the operator's process were."""


def replay_until(line: Line, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str) -> None:
    """Replay all, and be killed before this step."""

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(owner, step, killed)
        with pytest.raises(Killed):
            line.office.replay()


@pytest.mark.parametrize("here", ["memory", *NATIVE, "rabbitmq", "kafka"], indirect=True)
def test_a_discard_after_a_replay_that_was_cut_short_ends_the_job(here: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    line = given_up(here)
    replay_until(line, monkeypatch, QueuePlace, "put_back")
    assert here.entry("a0").status == "pending"
    assert [letter.source for letter in line.office.discard("a typo")] == ["queue"]
    assert (here.entry("a0").status, here.entry("a0").digest, line.office.list(Selection(names=frozenset({"a0"})))) == ("failed", "", [])
    here.drain()
    assert (line.done, line.held()) == (["a1", "a2"], [])


@pytest.mark.parametrize("type_", ["t", "unknown"])
@pytest.mark.parametrize("here", ["memory", "rabbitmq"], indirect=True)
def test_a_discard_of_what_was_replayed_since_it_has_looked_ends_nothing(here: Office, type_: str) -> None:
    line = given_up(here, type_=type_)
    chosen = as_seen(here.engine, listed(here))
    mend(line)
    assert line.office.replay() == {Fate.REPLAYED: 1}
    assert list(discarded(here.engine, chosen, "a typo")) == []
    here.drain()
    assert (line.done, line.held()) == (["a0", "a1", "a2"], [])


def test_a_discard_between_the_two_steps_of_a_replay_leaves_the_letter_to_it(here: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    line, real, gone = given_up(here), QueuePlace.put_back, []
    chosen = as_seen(here.engine, listed(here))

    def put_back(place: QueuePlace, revivals: Any) -> Any:
        gone.extend(discarded(here.engine, chosen, "a typo"))
        return real(place, revivals)

    monkeypatch.setattr(QueuePlace, "put_back", put_back)
    mend(line)
    assert line.office.replay() == {Fate.REPLAYED: 1}
    here.drain()
    assert (gone, line.done) == ([], ["a0", "a1", "a2"])


def test_a_replay_leaves_alone_what_was_discarded_since_it_has_looked(here: Office) -> None:
    line = given_up(here)
    meant, entry = mark(here.engine, listed(here)), here.entry("a0")
    book = Ledger(here.engine, worker="operator", lease=30.0, native_delay=False)
    assert book.discard(entry.id, job=entry.job_id, replays=0, note="discarded: a typo")  # its letter is there for a moment yet
    assert replay(here, meant) == {Fate.GONE: 1}
    assert len(line.office.list()) == 1


def test_a_replay_of_a_lost_letter_that_is_cut_short_has_not_begun(
    here: Office, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = given_up(here)
    line.purge(request)
    for owner, step in ((LostPlace, "put_back"), (lost, "insert_rows")):
        replay_until(line, monkeypatch, owner, step)
        assert (here.entry("a0").status, here.entry("a0").replays, [letter.source for letter in line.office.list()]) == ("failed", 0, ["ledger"])
    mend(line)
    assert line.office.replay() == {Fate.REPLAYED: 1}
    here.drain()
    assert line.done == ["a0", "a1", "a2"]


@pytest.mark.parametrize("type_", ["t", "unknown"])
def test_of_those_who_act_on_the_same_lost_letters_the_first_does_on_each_database(
    database_url: str, type_: str, request: pytest.FixtureRequest
) -> None:
    with office(database_url, Memory(native_delay=False), name="q") as here:
        line = given_up(here, type_=type_)
        line.purge(request)
        one, other = (mark(here.engine, listed(here)) for _ in range(2))
        third = as_seen(here.engine, listed(here))
        assert [replay(here, meant) for meant in (one, other)] == [{Fate.REPLAYED: 1}, {Fate.GONE: 1}]
        assert list(discarded(here.engine, third, "purged")) == []
        mend(line)
        here.drain()
        assert line.done == ["a0", "a1", "a2"]
        assert replay(here, other) == {Fate.GONE: 1}
        with here.engine.connect() as connection:
            assert len(connection.execute(select(outbox.c.seq).where(outbox.c.key == "a0")).all()) == 2


@pytest.mark.parametrize("type_", ["t", "unknown"])
def test_a_lost_letter_that_was_discarded_since_it_was_listed_is_neither_replayed_nor_discarded_again(
    here: Office, type_: str, request: pytest.FixtureRequest
) -> None:
    line = given_up(here, type_=type_)
    line.purge(request)
    meant, chosen = mark(here.engine, listed(here)), as_seen(here.engine, listed(here))
    assert len(line.office.discard("purged")) == 1
    assert (replay(here, meant), list(discarded(here.engine, chosen, "purged, too"))) == ({Fate.GONE: 1}, [])
    here.drain()
    assert line.done == ["a1", "a2"]
