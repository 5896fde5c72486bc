"""A broker loses jobs that it had confirmed, and an operator sends them again: each is done once."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from postroom.adapters import Queue
from postroom.adapters.sql.engine import open_engine
from postroom.outbox import Outbox
from support.command import postroom
from support.kafka_server import Server
from support.outboxes import let_pass
from support.rabbit import raw

APPLICATION = """
from sqlalchemy import text
from postroom.adapters import Queue
from postroom.consumers import Context, Jobs

jobs = Jobs(group="{queue}")

@jobs.handler("send", queue=Queue(name="{queue}", ordered={ordered}))
def send(payload: dict[str, int], context: Context) -> None:
    context.session.execute(text("INSERT INTO effects (job) VALUES (:key)"), {{"key": context.job.key}})
"""
KEYS = [f"order-{number}" for number in range(5)]


class Operator:
    """One with an application of one queue, whose jobs were sent two hours ago."""

    def __init__(self, broker: str, folder: Path, *, ordered: bool = False) -> None:
        self.queue = f"mails-{uuid.uuid4().hex[:8]}"
        self._outbox = Outbox(Queue(name=self.queue, ordered=ordered))
        self._folder = folder
        self._variables = {"POSTROOM_DATABASE": "sqlite:///postroom.db", "POSTROOM_BROKER": broker}
        (folder / "shop.py").write_text(APPLICATION.format(queue=self.queue, ordered=ordered))
        self("schema", "create")
        self.engine = open_engine(f"sqlite:///{folder}/postroom.db")
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE effects (id INTEGER PRIMARY KEY, job TEXT)"))
        self("declare", "shop:jobs")

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        answer = postroom(*arguments, cwd=self._folder, **self._variables)
        assert answer.returncode == code, (answer.stdout, answer.stderr)
        return answer

    def send(self, *keys: str, ordering_key: str | None = None) -> None:
        with self.engine.begin() as connection:
            for key in keys:
                self._outbox.enqueue(connection, "send", {}, key=key, ordering_key=ordering_key)
        self("relay", "--drain")
        let_pass(self.engine, 7200.0)

    def resend(self, *options: str, code: int = 0) -> dict:
        (told,) = self("resend", "--json", *options, code=code).stdout.splitlines()
        return json.loads(told)

    def effects(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.execute(text("SELECT job FROM effects ORDER BY id")).scalars())


@pytest.fixture
def operators(tmp_path: Path) -> Iterator[list[Operator]]:
    made: list[Operator] = []
    yield made
    for each in made:
        each.engine.dispose()


def test_s051_the_jobs_of_a_rabbitmq_queue_that_was_deleted_are_sent_again_and_each_is_done_once(rabbitmq_url, tmp_path, operators):
    here = Operator(rabbitmq_url, tmp_path)
    operators.append(here)
    here.send(*KEYS)
    waiting = here.resend(code=1)
    assert (waiting["waits"], waiting["outstanding"], waiting["on_broker"], waiting["resent"]) == (True, 5, 5, 0)
    with raw(rabbitmq_url) as channel:
        channel.queue_delete(here.queue)
    assert here.resend("--dry-run")["resent"] == 5
    told = here.resend()
    assert told == {"queue": here.queue, "outstanding": 5, "overdue": 5, "on_broker": 0, "resent": 5, "waits": False}
    here("work", "shop:jobs", "--drain")
    assert sorted(here.effects()) == KEYS
    assert here("resend").stderr == "postroom: nothing is overdue\n"


def test_s051_what_is_sent_again_though_it_was_there_is_done_once(rabbitmq_url, tmp_path, operators):
    here = Operator(rabbitmq_url, tmp_path)
    operators.append(here)
    here.send(*KEYS)
    left = here("resend", code=1)
    assert f"left alone: {here.queue}: the broker holds as many as were not begun" in left.stderr
    assert here.resend("--force")["resent"] == 5
    here("work", "shop:jobs", "--drain")
    assert sorted(here.effects()) == KEYS


def test_s051_a_lost_job_of_an_ordered_queue_is_done_before_what_was_sent_behind_it(rabbitmq_url, tmp_path, operators):
    here = Operator(rabbitmq_url, tmp_path, ordered=True)
    operators.append(here)
    steps = [f"step-{number}" for number in range(4)]
    here.send(*steps[:3], ordering_key="k")
    with raw(rabbitmq_url) as channel:
        for part in range(8):
            channel.queue_delete(f"{here.queue}#{part}")
    here("declare", "shop:jobs")
    here.send(steps[3], ordering_key="k")
    told = here.resend("--limit", "1")
    assert (told["outstanding"], told["on_broker"], told["resent"]) == (4, 1, 4)
    here("work", "shop:jobs", "--drain")
    assert here.effects() == steps


@pytest.fixture
def kafka(kafka_server: Server, tmp_path: Path, operators: list[Operator], request: pytest.FixtureRequest) -> Operator:
    here = Operator(f"kafka://{kafka_server.address}?mode={request.param}&partitions=1", tmp_path)
    operators.append(here)
    return here


@pytest.mark.parametrize("kafka", ["classic"], indirect=True)
def test_s051_the_jobs_of_a_kafka_topic_that_was_deleted_and_made_anew_are_sent_again_and_each_is_done_once(kafka, kafka_server):
    kafka.send("before-1", "before-2")
    kafka("work", "shop:jobs", "--drain")
    kafka.send(*KEYS)
    kafka_server.delete(kafka.queue)
    kafka("declare", "shop:jobs")
    told = kafka.resend()
    assert (told["outstanding"], told["on_broker"], told["resent"]) == (5, 0, 5)
    kafka("work", "shop:jobs", "--drain")
    assert sorted(kafka.effects()) == ["before-1", "before-2", *KEYS]


@pytest.mark.parametrize("kafka", ["share"], indirect=True)
def test_s051_the_jobs_that_a_topic_s_retention_removed_are_sent_again_and_each_is_done_once(kafka, kafka_server):
    kafka.send(*KEYS)
    kafka_server.forget_before(kafka.queue, 0, 3)
    told = kafka.resend()
    assert (told["outstanding"], told["on_broker"], told["resent"]) == (5, 2, 5)  # which are lost it does not tell: two will come twice
    kafka("work", "shop:jobs", "--drain")
    assert sorted(kafka.effects()) == KEYS
