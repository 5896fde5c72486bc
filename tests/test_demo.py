"""`postroom demo`: the story is true on every database and broker, and the commands that it ends with work as printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from postroom.adapters.sql.engine import open_engine
from postroom.consumers.cli.demo import _hasty
from support.command import environment, postroom
from support.everywhere import REAL_BROKERS, broker_url


def emails(url: str) -> list[int]:
    engine = open_engine(url)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT order_id FROM shop_sent_emails ORDER BY order_id")).scalars().all()
    engine.dispose()
    return list(found)


def told(*arguments: str, cwd: Path, **variables: str) -> str:
    answer = postroom("demo", *arguments, cwd=cwd, **variables)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_the_story_of_order_4711_ends_with_one_email(database_url: str, tmp_path: Path):
    story = told("--database", database_url, cwd=tmp_path)
    assert emails(database_url) == [4711]
    assert database_url in story or ":***@" in story  # never the password
    crashed = story[story.index("3. ") : story.index("4. ")]
    assert "send-receipt  done" in crashed
    assert "emails sent: 1, waiting on the broker: 0, held by a worker: 1" in crashed
    recovered = story[story.index("4. ") : story.index("5. ")]
    assert "emails sent: 1, waiting on the broker: 0, held by a worker: 0" in recovered


MISSED = {
    "rabbitmq": ("RabbitMQ sees its connection", "is given the job again at once"),
    "kafka": ("has not committed", "reads on from the committed offset"),
    "kafka-share": ("as acquired, and not as accepted", "gives up the dead worker's hold"),
}


@pytest.mark.parametrize("kind", REAL_BROKERS)
def test_the_story_tells_how_its_broker_misses_a_worker(request: pytest.FixtureRequest, kind: str, sqlite_database_url: str, tmp_path: Path):
    story = told("--database", sqlite_database_url, "--broker", broker_url(request, kind), cwd=tmp_path)
    assert emails(sqlite_database_url) == [4711]
    assert ":postroom@" not in story  # the password
    crashed, recovered = (" ".join(story[story.index(f"{step}. ") : story.index(f"{step + 1}. ")].split()) for step in (3, 4))
    assert MISSED[kind][0] in crashed
    assert MISSED[kind][1] in recovered
    assert "emails sent: 1, on the broker, not acknowledged: 1" in crashed
    assert "emails sent: 1, on the broker, not acknowledged: 0" in recovered


@pytest.mark.parametrize(
    ("named", "used"),
    [
        ("kafka://host:9092", "kafka://host:9092?session.timeout.ms=6000&heartbeat.interval.ms=1000"),
        ("kafka://host:9092?mode=share", "kafka://host:9092?mode=share"),
        ("kafka://host:9092?session.timeout.ms=9000", "kafka://host:9092?session.timeout.ms=9000"),
        ("amqp://host", "amqp://host"),
    ],
)
def test_the_story_does_not_wait_for_kafka_s_default_of_45_seconds(named: str, used: str):
    assert _hasty(named) == used


def test_told_again_in_the_same_database_it_is_the_story_of_the_next_order(sqlite_database_url: str, tmp_path: Path):
    told("--database", sqlite_database_url, cwd=tmp_path)
    assert "status order-4712" in told("--database", sqlite_database_url, cwd=tmp_path)
    assert emails(sqlite_database_url) == [4711, 4712]


def test_it_leaves_the_database_of_the_environment_alone(tmp_path: Path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    told(cwd=tmp_path, POSTROOM_DATABASE="sqlite:///in-earnest.db", POSTROOM_BROKER="memory:", TMPDIR=str(temporary))
    assert not (tmp_path / "in-earnest.db").exists()


def test_a_broker_in_memory_is_refused_with_the_reason(tmp_path: Path):
    answer = postroom("demo", "--broker", "memory:", cwd=tmp_path)
    assert (answer.returncode, answer.stderr) == (2, "postroom: memory:: the story needs a broker that two processes can see\n")


def test_the_commands_that_it_ends_with_work_as_printed(tmp_path: Path):
    (tmp_path / "postroom").write_text(f'#!/bin/sh\nexec {sys.executable} -c "from postroom.consumers.cli import main; main()" "$@"\n')
    (tmp_path / "postroom").chmod(0o755)
    variables = environment({"TMPDIR": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    story = subprocess.run(["postroom", "demo"], cwd=tmp_path, env=variables, check=True, capture_output=True, text=True).stdout
    lines = [line.strip() for line in story.partition("Try next:")[2].splitlines() if line.strip()]
    assert len(lines) == 9
    script = "\n".join(f"{line}\necho exit code $?" for line in lines)
    said = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=variables, check=True, capture_output=True, text=True).stdout
    assert re.findall(r"exit code (\d+)", said) == ["0", "0", "0", "0", "1", "0", "0", "0", "0"]
    assert re.search(r"send-receipt  done .*\n.*exit code 0", said)
    assert "the payload does not fit Receipt" in said
    assert "discarded 1" in said
    assert "export" not in story  # what is tried later in this shell means another database
