"""Who is about to use the tables for long looks at them first: drift ends the command at once, with its remedy, and does not hang it later."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from postroom.adapters.errors import SchemaDrift
from postroom.adapters.memory import Memory
from postroom.adapters.seam import Queue
from postroom.adapters.sql.adapter import SqlAdapter
from postroom.adapters.sql.engine import open_engine
from postroom.consumers import Jobs, Stop, Worker
from postroom.outbox.relay import Relay
from support.command import postroom

APP = """
from postroom.consumers import Jobs

jobs = Jobs()


@jobs.handler("send", queue="emails")
def send(order_id: int) -> None:
    pass
"""
DRIFTS = [
    ("postroom_ledger", "suspicions", ("work", "shop:jobs", "--drain")),
    ("postroom_outbox", "last_error", ("work", "shop:jobs", "--drain")),
    ("postroom_jobs", "worker", ("work", "shop:jobs", "--drain")),
    ("postroom_outbox", "last_error", ("relay", "--drain")),
    ("postroom_outbox", "last_error", ("relay",)),
    ("postroom_jobs", "worker", ("declare", "shop:jobs")),
]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with an application, the tables, and a job that waits."""
    (tmp_path / "shop.py").write_text(APP)
    assert postroom("schema", "create", cwd=tmp_path).returncode == 0
    assert postroom("enqueue", "send", "--payload", '{"order_id": 1}', "--queue", "emails", cwd=tmp_path).returncode == 0
    return tmp_path


def drop(directory: Path, table: str, column: str) -> None:
    with closing(sqlite3.connect(directory / "postroom.db")) as connection:
        connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")


@pytest.mark.parametrize(("table", "column", "command"), DRIFTS, ids=lambda value: value if isinstance(value, str) else value[0])
def test_a_missing_column_ends_the_command_at_its_start_with_the_remedy(here: Path, table: str, column: str, command: tuple[str, ...]) -> None:
    drop(here, table, column)
    answer = postroom(*command, cwd=here)
    assert answer.returncode == 3
    assert f"column {table}.{column} is missing: ALTER TABLE {table} ADD COLUMN {column}" in answer.stderr
    assert "`postroom schema check` lists all" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_create_says_what_differs_that_it_does_not_alter_it_and_no(here: Path) -> None:
    drop(here, "postroom_ledger", "suspicions")
    answer = postroom("schema", "create", cwd=here)
    said, difference = answer.stdout.splitlines()
    assert answer.returncode == 1
    assert said == "sqlite:///postroom.db: what follows is there, but not as it should be, and is not altered:"
    assert difference.startswith("column postroom_ledger.suspicions is missing: ALTER TABLE postroom_ledger ADD COLUMN suspicions")


def test_create_makes_what_it_can_beside_what_it_does_not_alter(here: Path) -> None:
    drop(here, "postroom_ledger", "suspicions")
    with closing(sqlite3.connect(here / "postroom.db")) as connection:
        connection.execute("DROP TABLE postroom_relays")
    said, *differences = postroom("schema", "create", cwd=here).stdout.splitlines()
    assert said == "sqlite:///postroom.db: made postroom_relays"
    assert len(differences) == 2


def test_an_embedded_worker_and_relay_and_broker_refuse_to_start_too(here: Path) -> None:
    for table, column in (("postroom_ledger", "suspicions"), ("postroom_outbox", "last_error"), ("postroom_jobs", "worker")):
        drop(here, table, column)
    engine = open_engine(f"sqlite:///{here}/postroom.db")
    jobs = Jobs()
    jobs.handler("send", queue="emails")(lambda payload: None)  # noqa: ARG005 - never called
    with pytest.raises(SchemaDrift, match=r"postroom_ledger\.suspicions"):
        Worker(jobs, engine, Memory()).run(Stop())
    for start in (Relay(engine, Memory()).drain, lambda: Relay(engine, Memory()).run(Stop().asked)):
        with pytest.raises(SchemaDrift, match=r"postroom_outbox\.last_error"):
            start()
    with pytest.raises(SchemaDrift, match=r"postroom_jobs\.worker"):
        SqlAdapter(engine).ensure([Queue(name="emails")])
    engine.dispose()
