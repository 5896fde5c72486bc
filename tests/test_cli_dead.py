"""`postroom dead`, as an operator runs it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

import postroom.consumers.tables
from postroom.adapters.sql import schema
from postroom.adapters.sql.engine import open_engine
from postroom.outbox import Outbox
from support.command import environment, postroom

APPS = Path(__file__).parent / "apps"


class Desk:
    """An operator's, in the folder of the application `mail`."""

    def __init__(self, database: str, folder: Path) -> None:
        self.variables = {"POSTROOM_DATABASE": database, "BROKEN": str(folder / "broken")}
        self.engine = open_engine(database)
        self.break_for()
        schema.create(self.engine)
        with self.engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE mails (id INTEGER PRIMARY KEY {self._counts}, customer VARCHAR(50) NOT NULL)"))

    @property
    def _counts(self) -> str:
        return {"sqlite": "", "postgresql": "GENERATED ALWAYS AS IDENTITY", "mysql": "AUTO_INCREMENT"}[self.engine.dialect.name]

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        answer = postroom(*arguments, cwd=APPS, **self.variables)
        assert answer.returncode == code, answer.stderr
        return answer

    def json(self, *arguments: str) -> list[dict]:
        return [json.loads(line) for line in self(*arguments, "--json").stdout.splitlines()]

    def break_for(self, *customers: str) -> None:
        Path(self.variables["BROKEN"]).write_text(" ".join(customers))

    def enqueue(self, *customers: str) -> None:
        with self.engine.begin() as connection:
            for customer in customers:
                Outbox(queue="mails").enqueue(connection, "send-mail", {"customer": customer}, key=f"mail-{customer}")

    def work(self, code: int = 0) -> None:
        self("work", "mail:jobs", "--drain", code=code)

    def kill_jobs(self, *customers: str) -> None:
        self.break_for(*customers)
        self.enqueue(*customers)
        self.work(code=1)
        self.break_for()

    @property
    def mails(self) -> list[str]:
        with self.engine.connect() as connection:
            return sorted(connection.execute(text("SELECT customer FROM mails")).scalars())

    @property
    def replays(self) -> dict[str, int]:
        with self.engine.connect() as connection:
            rows = connection.execute(text("SELECT job_id, replays FROM postroom_ledger")).all()
        return {row.job_id: row.replays for row in rows}


@pytest.fixture
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    made = Desk(request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_database_url"), tmp_path)
    yield made
    made.engine.dispose()


def test_dead_letters_from_the_first_look_to_the_last(desk: Desk):
    desk.kill_jobs("ann", "bob")
    [first, second] = desk.json("dead", "list")
    assert {first["key"], second["key"]} == {"mail-ann", "mail-bob"}
    assert "ann has no mailbox" in desk("dead", "list").stdout

    [group] = desk.json("dead", "list", "--by-error", "--error", "ann has")
    assert (group["count"], group["types"]) == (1, {"send-mail": 1})

    [whole] = desk.json("dead", "show", "mail-ann")
    assert whole["payload"] == {"customer": "ann"}
    assert whole["headers"]["postroom-key"] == "mail-ann"
    assert '"customer": "ann"' in desk("dead", "show", "mail-ann").stdout

    assert desk.json("dead", "replay", "mail-ann") == [{"replayed": 1, "gone": 0, "done": 0, "lost": 0, "conflict": 0}]
    [gone] = desk.json("dead", "discard", "--type", "send-mail", "--reason", "bob is away")
    assert gone["payload"] == {"customer": "bob"}
    desk.work()
    assert desk.mails == ["ann"]
    empty = desk("dead", "list")
    assert (empty.stdout, empty.stderr) == ("", "postroom: no dead letters\n")


def test_a_name_that_may_be_meant_in_two_ways_is_not_acted_on(desk: Desk):
    desk.break_for("ann")
    desk("enqueue", "send-mail", "--queue", "mails", "--key", "2", "--payload", '{"customer": "ann"}')
    desk.work(code=1)
    desk.enqueue("bob")
    with desk.engine.begin() as connection:
        connection.execute(text("UPDATE postroom_outbox SET status = 'parked', last_error = 'too large' WHERE seq = 2"))
    for arguments in (["replay", "2"], ["discard", "2", "--reason", "x"], ["replay", "2", "--limit", "1"]):
        assert "'2' names 2 letters, in mails (outbox), mails (queue): name the job by its id" in desk("dead", *arguments, code=2).stderr
    assert len(desk.json("dead", "list")) == 2
    assert desk.json("dead", "replay", "2", "--source", "outbox")[0]["replayed"] == 1


def test_who_names_no_letter_is_asked_which(desk: Desk):
    for arguments in (["replay"], ["show"], ["discard", "--reason", "x"]):
        told = desk("dead", *arguments, code=2).stderr
        assert "which ones?" in told
        assert ("--all" in told) == (arguments != ["show"])


def test_a_discard_needs_a_reason(desk: Desk):
    assert "--reason" in desk("dead", "discard", "mail-ann", code=2).stderr


def test_a_letter_that_is_named_and_not_there_is_a_no(desk: Desk):
    for arguments in (["replay", "mail-ann"], ["show", "mail-ann"], ["discard", "mail-ann", "--reason", "x"]):
        told = desk("dead", *arguments, code=1).stderr
        assert told.startswith("postroom: there is no dead letter mail-ann (any more) in the queues that are known; --app MODULE:JOBS names")


def test_all_of_nothing_is_no_failure(desk: Desk):
    for arguments in (["replay", "--all"], ["discard", "--all", "--reason", "x"]):
        assert desk("dead", *arguments).stderr == "postroom: no dead letters\n"


@pytest.mark.parametrize("name", ["mails", "mails.dlq"])
def test_the_letters_of_a_queue_are_found_by_each_of_its_names(desk: Desk, name: str):
    desk.kill_jobs("ann")
    assert [letter["key"] for letter in desk.json("dead", "list", "--queue", name)] == ["mail-ann"]
    assert [letter["key"] for letter in desk.json("dead", "list", "--queue", name, "--app", "mail:jobs")] == ["mail-ann"]


def test_of_a_queue_that_nobody_declared_it_is_said_what_declares_it(desk: Desk):
    desk.kill_jobs("ann")
    said = desk("dead", "list", "--queue", "mail", code=2).stderr
    assert said == "postroom: the broker knows no queue 'mail' (it tells of: mails); `postroom declare ...` declares them\n"
    assert desk("dead", "list", "--queue", "mail", "--source", "outbox").stderr == "postroom: no dead letters\n"


def test_what_was_discarded_has_nothing_before_it(desk: Desk):
    desk.kill_jobs("ann")
    assert "postroom dead show" in desk("status", "mail-ann").stdout
    desk("dead", "discard", "mail-ann", "--reason", "she has left")
    told = desk("status", "mail-ann").stdout
    assert "nothing; it was discarded" in told
    assert "discarded: she has left; it was: ann has no mailbox" in told
    assert "dead show" not in told


def test_a_discarded_job_without_a_handler_is_told_as_discarded_too(desk: Desk):
    desk("enqueue", "no-such-type", "--queue", "mails", "--key", "k")
    desk.work(code=1)
    desk("dead", "discard", "k", "--reason", "a typo")
    told = desk("status", "k").stdout
    assert "no-such-type  failed" in told
    assert "nothing; it was discarded" in told


def test_a_canary_that_no_worker_takes_leaves_the_others_and_tells_what_to_do(desk: Desk):
    desk.kill_jobs("ann", "bob")
    answer = desk("dead", "replay", "--all", "--canary-timeout", "300ms", code=1)
    assert "went first, and it was not finished within 0.3 s: pending" in answer.stderr
    assert "left where they are: 1 more" in answer.stderr
    assert "Is a worker running?" in answer.stderr
    assert len(desk.json("dead", "list")) == 1
    desk("dead", "replay", "--all", "--no-canary")
    desk.work()
    assert desk.mails == ["ann", "bob"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("desk", ["sqlite", "postgresql", "mariadb"], indirect=True)
def test_a_replay_killed_in_the_middle_loses_no_job_and_replays_none_twice(desk: Desk, when: str):
    customers = ["ann", "bob", "cleo", "dan", "eve"]
    desk.kill_jobs(*customers)
    command = [sys.executable, "stuck_replay.py", when]
    with subprocess.Popen(command, cwd=APPS, env=environment(desk.variables), stdout=subprocess.PIPE, text=True) as replay:
        assert replay.stdout.readline() == "stopped\n"
        replay.kill()
    desk.work()
    assert len(desk.mails) == {"before": 2, "after": 4}[when]
    desk("dead", "replay", "--all", "--no-canary")
    desk.work()
    assert desk.mails == customers
    assert set(desk.replays.values()) == {1}
    assert desk.json("dead", "list") == []
