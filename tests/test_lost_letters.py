"""Who holds an ordering key, and what sets it free: the same on every backend, also for jobs without a handler, and when a dead letter is gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, text, update

from postroom.adapters.errors import PostroomError
from postroom.adapters.memory import Memory
from postroom.adapters.memory.consumer import MemoryConsumer
from postroom.consumers import Backoff, Fate, Jobs, Selection
from postroom.consumers.cli.held import held
from postroom.consumers.ledger import Failed, Ledger, Released, Started, giving_up
from postroom.consumers.ledger.tables import ledger
from postroom.consumers.status import status_of
from postroom.consumers.worker.quiet import Quiet
from postroom.outbox import Outbox
from postroom.outbox.tables import outbox
from support.brokers import NATIVE, ORDERED
from support.command import postroom
from support.inprocess import Office, office, office_on, working
from support.ledgers import begin, claim, finish, start
from support.lines import Line
from support.workers import eventually

HOUR = 3600.0
BEHIND = "behind a job of the same ordering key that has failed: see `postroom dead list`"


@pytest.fixture(params=[*ORDERED, *NATIVE])
def here(request: pytest.FixtureRequest) -> Iterator[Office]:
    with office_on(request.param, request.getfixturevalue) as made:
        yield made


def named(*names: str) -> Selection:
    return Selection(names=frozenset(names))


@pytest.mark.parametrize("way", ["replayed", "discarded"])
def test_a_job_without_a_handler_holds_its_ordering_key_until_a_person_has_decided(here: Office, way: str) -> None:
    line = Line(here)
    line.enqueue("a0", type_="unknown")
    line.enqueue("a1", "a2")
    line.enqueue("b0", ordering_key="other")
    assert here.drain().failed == 1
    assert line.done == ["b0"]
    [letter] = line.office.list()
    assert letter.error == f"given up after 1 attempt: no handler for type 'unknown' here; its queue is {here.name!r}"
    assert [status.status for key in ("a0", "a1") for status in status_of(here.engine, key)] == ["failed", "pending"]
    if way == "replayed":
        here.jobs.handler("unknown", queue=line.queue)(line.handle)
        assert line.office.replay() == {Fate.REPLAYED: 1}
    else:
        assert [gone.id for gone in line.office.discard("a typo")] == [letter.id]
    assert here.drain().failed <= 0
    assert line.done[1:] == ["a0", "a1", "a2"][way == "discarded" :]
    assert line.held() == []


def test_a_job_without_a_handler_has_its_turn_after_an_earlier_one_that_has_failed(here: Office) -> None:
    line = Line(here, broken="a0")
    line.enqueue("a0")
    line.enqueue("a1", type_="unknown")
    here.drain()
    assert [letter.envelope.key for letter in line.office.list() if letter.envelope] == ["a0"]
    line.office.discard("a typo")
    here.drain()
    assert [letter.envelope.key for letter in line.office.list() if letter.envelope] == ["a1"]


@pytest.mark.parametrize("here", ["memory"], indirect=True)
def test_a_key_is_held_durably_before_the_dead_letter_is_written(here: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    line, seen, real = Line(here), [], MemoryConsumer.dead_letter

    def dead_letter(consumer: MemoryConsumer, *given: Any) -> None:
        seen.append(line.held())
        real(consumer, *given)

    monkeypatch.setattr(MemoryConsumer, "dead_letter", dead_letter)
    line.enqueue("a0", type_="unknown")
    here.drain()
    [letter] = line.office.list()
    assert seen == [[letter.envelope.id if letter.envelope else ""]]


@pytest.mark.parametrize("here", ["memory", *NATIVE], indirect=True)
def test_a_retry_whose_handler_was_removed_meanwhile_is_given_up_and_nobody_waits_for_it(here: Office) -> None:
    with_handler, without = Jobs(), Jobs()
    with_handler.handler("old", queue=here.name, max_attempts=3)(lambda _: 1 / 0)
    without.handler("t", queue=here.name)(lambda _: None)
    here.enqueue("old", "k")
    worker = Office(engine=here.engine, adapter=here.adapter, name=here.name, jobs=with_handler)
    with working(worker.worker()) as shift:
        eventually(lambda: shift.worker.counts["failed"])
    Office(engine=here.engine, adapter=here.adapter, name=here.name, jobs=without).drain()
    assert (here.entry("k").status, here.entry("k").last_error) == ("failed", f"no handler for type 'old' here; its queue is {here.name!r}")


@pytest.mark.parametrize("way", ["replayed", "discarded"])
@pytest.mark.parametrize("here", ORDERED, indirect=True)
def test_a_job_whose_dead_letter_was_purged_can_be_decided_about_all_the_same(here: Office, way: str, request: pytest.FixtureRequest) -> None:
    line = Line(here, broken="a0")
    line.enqueue("a0", "a1", "a2")
    here.drain()
    line.purge(request)
    [letter] = line.office.list(named("a0"))
    assert (letter.source, letter.error, letter.message.body) == ("ledger", "ValueError: no such address", b"{}")
    line.broken = ""
    if way == "replayed":
        assert line.office.replay(named("a0")) == {Fate.REPLAYED: 1}
    else:
        assert [gone.id for gone in line.office.discard("purged", named("a0"))] == [letter.id]
        assert here.entry("a0").last_error == "discarded: purged; it was: ValueError: no such address"
    assert line.office.list(named("a0")) == []
    here.drain()
    assert line.done == ["a0", "a1", "a2"][way == "discarded" :]
    assert (here.entry("a0").replays, line.held()) == (1 if way == "replayed" else 0, [])
    assert line.office.discard("again", named("a0")) == []


@pytest.mark.parametrize("here", ["rabbitmq"], indirect=True)
def test_the_command_frees_the_key_of_a_job_whose_dead_letter_was_purged_and_says_so(
    here: Office, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    line = Line(here, broken="a0")
    line.enqueue("a0", "a1")
    here.drain()
    line.purge(request)

    urls = {"POSTROOM_DATABASE": "sqlite:///postroom.db", "POSTROOM_BROKER": request.getfixturevalue("rabbitmq_url")}

    def run(*arguments: str) -> str:
        answer = postroom(*arguments, cwd=tmp_path, **urls)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    assert f"lost (of {here.name})" in run("dead", "list")
    said = run("dead", "discard", "a0", "--reason", "purged")
    assert said == "discarded 1, 1 of them in the ledger alone: their letters were gone; their keys are free\n"
    assert "nothing; it was discarded" in run("status", "a0")
    here.drain()
    assert line.done == ["a1"]


@pytest.mark.parametrize("here", ["memory"], indirect=True)
def test_a_lost_job_that_the_outbox_has_forgotten_is_not_replayed_but_can_be_discarded(here: Office, request: pytest.FixtureRequest) -> None:
    line = Line(here, broken="a0")
    line.enqueue("a0", "a1")
    here.drain()
    line.purge(request)
    with here.engine.begin() as connection:
        connection.execute(delete(outbox).where(outbox.c.key == "a0"))
    assert line.office.replay() == {Fate.LOST: 1}
    assert here.entry("a0").status == "failed"
    assert len(line.office.discard("purged")) == 1
    here.drain()
    assert line.done == ["a1"]


@pytest.mark.parametrize("here", ["memory"], indirect=True)
def test_a_lost_letter_of_a_job_whose_key_is_another_s_is_found_and_frees_its_ordering_key(here: Office, request: pytest.FixtureRequest) -> None:
    line = Line(here)
    line.enqueue("a0")
    here.drain()
    with here.engine.begin() as connection:
        Outbox(queue=line.queue).enqueue(connection, "t", {"other": "payload"}, key="a0", ordering_key="line")
    line.enqueue("a1")
    here.drain()
    line.purge(request)
    [letter] = line.office.list()
    assert (letter.source, letter.error.split()[0]) == ("ledger", "conflict:")
    assert len(line.office.discard("purged")) == 1
    here.drain()
    assert (line.done, here.entry("a0").status) == (["a0", "a1"], "done")


@pytest.mark.parametrize("here", ["memory"], indirect=True)
def test_what_is_on_its_way_again_or_waits_is_not_lost(here: Office, request: pytest.FixtureRequest) -> None:
    line = Line(here, broken="a0")
    line.enqueue("a0", "a1")
    here.drain()
    assert [letter.source for letter in line.office.list()] == ["queue"]
    line.office.replay()
    assert line.office.list(named("a0", "a1")) == []
    line.purge(request)
    assert line.office.list(named("a0", "a1")) == []
    line.broken = ""
    here.drain()
    assert line.done == ["a0", "a1"]


@pytest.mark.parametrize("here", ["memory"], indirect=True)
def test_a_job_that_the_ledger_waits_for_in_vain_can_be_discarded_by_its_name(here: Office) -> None:
    line = Line(here)
    here.adapter.ensure([line.queue])
    line.enqueue("a0")
    here.drain()
    with here.engine.begin() as connection:  # a release, and then somebody has deleted the queue
        connection.execute(update(ledger).values(status="pending", finished_at=None))
    assert line.office.list(named("a0")) == []
    past(here, 2 * HOUR)
    assert line.office.list(named("a0")) == []  # `resend` has its message
    with here.engine.begin() as connection:
        connection.execute(delete(outbox))
    assert line.office.list() == []
    assert len(line.office.discard("lost", named("a0"))) == 1
    assert (here.entry("a0").status, here.entry("a0").digest) == ("failed", "")
    here.drain()


def past(here: Office, seconds: float) -> None:
    ours = {name: ledger.c[name] - seconds for name in ("enqueued_at", "taken_at", "lease_until", "retry_at")}
    with here.engine.begin() as connection:
        connection.execute(update(ledger).values(ours))
        connection.execute(update(outbox).values(sent_at=outbox.c.sent_at - seconds))


def park_the_retry(line: Line) -> None:
    """A job has failed once, and the broker refuses its retry for good."""
    line.here.jobs.handler("flaky", queue=line.queue, max_attempts=3, backoff=Backoff(first=HOUR, cap=HOUR))(line.handle)
    line.enqueue("a0", type_="flaky")
    line.enqueue("a1")
    with working(line.here.worker()) as shift:
        eventually(lambda: shift.worker.counts["deferred"])
    with line.here.engine.begin() as connection:
        parked = {"status": "parked", "last_error": "too large", "available_at": outbox.c.available_at - HOUR}
        connection.execute(update(outbox).where(outbox.c.key == "a0", outbox.c.status == "pending").values(parked))
        connection.execute(update(ledger).values(retry_at=ledger.c.retry_at - HOUR))


@pytest.mark.parametrize("way", ["replayed", "discarded"])
@pytest.mark.parametrize("here", ORDERED, indirect=True)
def test_s067_a_retry_that_the_broker_refused_is_replayed_or_ends_in_the_ledger_too_when_it_is_discarded(here: Office, way: str) -> None:
    line = Line(here, broken="a0")
    park_the_retry(line)
    assert here.drain().failed == 0  # it does not wait for what only a person can set free
    assert held(here.engine) == {"a retry that the broker refused: see `postroom dead list --source outbox`": 1, BEHIND: 1}
    line.broken = ""
    if way == "replayed":
        assert line.office.replay() == {Fate.REPLAYED: 1}
    else:
        assert [letter.source for letter in line.office.discard("too large for good")] == ["outbox"]
        assert (here.entry("a0").status, here.entry("a0").digest) == ("failed", "")
        assert here.entry("a0").last_error == "discarded: too large for good; it was: too large"
    here.drain()
    assert line.done == ["a0", "a1"][way == "discarded" :]
    assert (line.held(), held(here.engine)) == ([], {})


@pytest.mark.parametrize("here", ["memory"], indirect=True)
def test_a_discard_of_a_refused_retry_that_the_ledger_can_not_store_leaves_both_as_they_are(here: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line(here, broken="a0")
    park_the_retry(line)
    monkeypatch.setattr(giving_up, "_END", text("UPDATE postroom_ledger SET no_such_column = 1"))
    with pytest.raises(PostroomError):
        line.office.discard("too large for good")
    assert [letter.source for letter in line.office.list()] == ["outbox"]
    assert (here.entry("a0").status, line.held()[0]) == ("pending", here.entry("a0").job_id)


@pytest.mark.parametrize(
    ("change", "ended"),
    [
        ({}, "failed"),
        ({"copy": 2}, "pending"),
        ({"status": "running", "lease_until": 4e9}, "running"),
        ({"status": "running", "lease_until": 1.0}, "failed"),
    ],
)
@pytest.mark.parametrize("here", ["memory"], indirect=True)
def test_a_discarded_message_ends_only_a_job_that_waits_for_it(here: Office, change: dict[str, Any], ended: str) -> None:
    line = Line(here, broken="a0")
    park_the_retry(line)
    with here.engine.begin() as connection:
        connection.execute(update(ledger).where(ledger.c.key == "a0").values(change or {"status": "pending"}))
    line.office.discard("too large for good")
    assert here.entry("a0").status == ended


@pytest.mark.parametrize("here", ["memory"], indirect=True)
def test_nobody_waits_for_a_job_that_was_begun_before_and_is_behind_a_dead_letter_now(here: Office) -> None:
    line = Line(here, broken="b")
    book = Ledger(here.engine, worker="dead", lease=30.0, native_delay=False)
    line.enqueue("a")
    with here.engine.connect() as connection:
        row = connection.execute(select(outbox.c.id, outbox.c.body)).one()
    first = claim("a", row.id, type_="t", body=row.body, queue=here.name, ordering_key="line", ordered=True)
    finish(book, Released(started=start(book, first)))
    failed = claim("b", "job-b", type_="t", queue=here.name, ordering_key="line", ordered=True)
    finish(book, Failed(started=start(book, failed), claim=failed, error="no", final=True))
    here.drain()
    assert (here.entry("a").status, line.done) == ("pending", [])
    assert held(here.engine) == {BEHIND: 1}
    assert len(line.office.discard("purged", named("b"))) == 1
    here.drain()
    assert line.done == ["a"]


@pytest.mark.parametrize("here", ["memory", *NATIVE], indirect=True)
def test_nobody_waits_for_what_is_behind_a_job_that_the_broker_refused_at_first(here: Office) -> None:
    line = Line(here)
    line.enqueue("a0", "a1")
    with here.engine.begin() as connection:
        connection.execute(update(outbox).where(outbox.c.key == "a0").values(status="parked", last_error="too large", holds="line"))
    here.drain()
    assert (line.done, held(here.engine)) == ([], {BEHIND: 1})
    assert [letter.source for letter in line.office.discard("too large for good")] == ["outbox"]
    here.drain()
    assert line.done == ["a1"]


def test_each_database_tells_what_only_a_person_can_set_free(database_url: str) -> None:
    with office(database_url, Memory(native_delay=False), name="q") as here:
        line = Line(here, broken="b")
        here.adapter.ensure([line.queue])
        book = Ledger(here.engine, worker="dead", lease=30.0, native_delay=False)
        begun, failed, parked = (claim(key, f"job-{key}", type_="t", queue="q", ordering_key="line", ordered=True) for key in "abp")
        finish(book, Released(started=start(book, begun)))
        retry = replace(parked, ordered=False)
        finish(book, Failed(started=start(book, retry), claim=retry, error="no"))
        finish(book, Failed(started=start(book, failed), claim=failed, error="no", final=True))
        assert not isinstance(begin(book, begun)[0], Started)
        with here.engine.begin() as connection:
            connection.execute(update(outbox).where(outbox.c.key == "p").values(status="parked", last_error="too large"))
        quiet = Quiet(here.engine, here.adapter, carriers=["q"], queues=["q"])
        assert [quiet.look() for _ in range(2)] == [False, True]
        assert held(here.engine) == {BEHIND: 1, "a retry that the broker refused: see `postroom dead list --source outbox`": 1}
        assert [(letter.source, letter.id) for letter in line.office.list(named("a", "b", "line"))] == [("ledger", "job-b")]
        assert {letter.source for letter in line.office.discard("for good", named("b", "p"))} == {"ledger", "outbox"}
        assert {entry.key: (entry.status, entry.digest) for entry in here.entries() if entry.key != "a"} == dict.fromkeys("bp", ("failed", ""))
        assert (line.held(), held(here.engine)) == (["job-a"], {})
        assert [quiet.look() for _ in range(2)] == [False, False]  # `a` may go
