"""The everyday subcommands as processes: what they do, what they print, and how they end."""

import json
import re
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from postroom.adapters.seam import Queue
from postroom.adapters.sql.engine import open_engine
from postroom.consumers.demo import shop
from support.command import COMMAND, environment, postroom
from support.workers import eventually

SHOP = Path(shop.__file__).read_text()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with the shop and its tables, in postroom.db."""
    (tmp_path / "shop.py").write_text(SHOP)
    assert postroom("schema", "create", cwd=tmp_path).returncode == 0
    shop.Base.metadata.create_all(engine := shop.create_engine(f"sqlite:///{tmp_path}/postroom.db"))
    engine.dispose()
    return tmp_path


def enqueue(here: Path, order: object, *options: str) -> dict:
    payload = json.dumps({"order_id": order})
    answer = postroom("enqueue", "send-receipt", "--key", f"order-{order}", "--payload", payload, "--app", "shop:jobs", *options, cwd=here)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def count(here: Path, table: str, where: str = "1 = 1") -> int:
    connection = sqlite3.connect(here / "postroom.db")
    (found,) = connection.execute(f"SELECT count(*) FROM {table} WHERE {where}").fetchone()  # noqa: S608 - all ours
    connection.close()
    return found


@contextmanager
def running(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """The command, still running; killed at the end if it still does."""
    process = subprocess.Popen([*COMMAND, *arguments], cwd=cwd, env=environment({}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_schema_is_made_checked_and_made_again_without_harm(tmp_path: Path):
    absent = postroom("schema", "check", cwd=tmp_path)
    assert (absent.returncode, absent.stdout) == (1, "sqlite:///postroom.db: there is no such file; run `postroom schema create`\n")
    (tmp_path / "postroom.db").touch()
    missing = postroom("schema", "check", cwd=tmp_path)
    assert missing.returncode == 1
    assert "table postroom_outbox is missing: run `postroom schema create`" in missing.stdout
    assert postroom("schema", "create", cwd=tmp_path).returncode == 0
    assert postroom("schema", "create", cwd=tmp_path).stdout == "sqlite:///postroom.db: all is there\n"
    assert postroom("schema", "check", cwd=tmp_path).returncode == 0


def test_schema_drift_is_a_no_that_names_the_column_and_what_mends_it(here: Path):
    connection = sqlite3.connect(here / "postroom.db")
    connection.execute("ALTER TABLE postroom_outbox DROP COLUMN last_error")
    connection.close()
    answer = postroom("schema", "check", "--json", cwd=here)
    assert answer.returncode == 1
    [difference] = json.loads(answer.stdout)["differences"]
    assert difference.startswith("column postroom_outbox.last_error is missing: ALTER TABLE postroom_outbox ADD COLUMN last_error")


def test_schema_makes_the_tables_of_a_broker_in_another_database_too(tmp_path: Path):
    answer = postroom("schema", "create", "--database", "sqlite:///a.db", "--broker", "sqlite:///b.db", cwd=tmp_path)
    assert [line.partition(": made ")[0] for line in answer.stdout.splitlines()] == ["sqlite:///a.db", "sqlite:///b.db"]


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql", "mysql", "mariadb"])
def test_schema_dump_prints_every_table_without_a_database(dialect: str, tmp_path: Path):
    ddl = postroom("schema", "dump", "--dialect", dialect, cwd=tmp_path).stdout
    for table in ("jobs", "lanes", "ledger", "outbox", "queues", "relays"):
        assert f"CREATE TABLE postroom_{table} (" in ddl
    assert list(tmp_path.iterdir()) == []


def test_declare_makes_the_queues_and_passive_only_compares(here: Path):
    missing = postroom("declare", "--passive", "shop:jobs", cwd=here)
    assert missing.returncode == 1
    assert "emails" in missing.stderr
    made = postroom("declare", "shop:jobs", "--json", cwd=here)
    assert json.loads(made.stdout) == {"queue": "emails", "carrier": "emails", "ordered": False, "dead_letter": "emails.dlq"}
    assert postroom("declare", "--passive", "shop:jobs", cwd=here).returncode == 0


def test_declare_does_not_touch_a_queue_that_is_there_with_other_arguments(here: Path):
    postroom("declare", "shop:jobs", cwd=here)
    (here / "shop.py").write_text(
        SHOP.replace('queue="emails", max_attempts', 'queue=Queue(name="emails", ordered=True), max_attempts').replace(
            "from postroom.outbox", "from postroom.adapters import Queue\nfrom postroom.outbox"
        )
    )
    answer = postroom("declare", "shop:jobs", cwd=here)
    assert answer.returncode == 2
    assert re.search(r"queue 'emails'.*ordered", answer.stderr)
    assert postroom("declare", "--passive", "shop:jobs", cwd=here).returncode == 1


def test_enqueue_prints_the_job_with_its_id(here: Path):
    job = enqueue(here, 4711)
    assert {**job, "id": ""} == {"id": "", "type": "send-receipt", "key": "order-4711", "queue": "emails"}
    assert re.fullmatch(r"[0-9a-f]{32}", job["id"])
    assert count(here, "postroom_outbox", f"id = '{job['id']}' AND status = 'pending'") == 1


def test_enqueue_reads_a_payload_from_standard_input(here: Path):
    answer = postroom("enqueue", "t", "--queue", "q", "--payload", "-", cwd=here, stdin='{"a": [1]}')
    assert answer.returncode == 0
    assert count(here, "postroom_outbox", "body = CAST('{\"a\":[1]}' AS BLOB)") == 1


def test_who_names_no_queue_is_asked_for_one(here: Path):
    answer = postroom("enqueue", "t", cwd=here)
    assert answer.returncode == 2
    assert answer.stderr.startswith("postroom: where does it go? Name its queue with --queue, or with --app")
    assert count(here, "postroom_outbox") == 0


def test_a_job_without_a_payload_has_an_empty_one(here: Path):
    assert postroom("enqueue", "t", "--queue", "q", cwd=here).returncode == 0
    assert count(here, "postroom_outbox", "body = CAST('{}' AS BLOB)") == 1


UNDECLARED = "held 1: queue 'typo' is not declared; run `postroom declare ...` or start its worker\n"


@pytest.mark.parametrize("extent", ["--once", "--drain"])
def test_a_relay_that_leaves_something_behind_says_what_and_why(here: Path, extent: str):
    postroom("enqueue", "t", "--queue", "typo", "--key", "k", cwd=here)
    for _ in range(2):  # the second finds it waiting for its next try
        answer = postroom("relay", extent, cwd=here)
        assert (answer.returncode, answer.stdout) == (1, f"sent 0\n{UNDECLARED}")
    assert re.search("next try in .*; queue 'typo' is not declared", postroom("status", "k", cwd=here).stdout)


@pytest.mark.parametrize("broker", ["sqlite:///postroom.db", "memory:"])
def test_a_drain_that_leaves_something_in_the_outbox_is_not_quiet(here: Path, broker: str):
    enqueue(here, 4711)
    postroom("enqueue", "t", "--queue", "typo", cwd=here)
    answer = postroom("work", "shop:jobs", "--drain", "--broker", broker, cwd=here)
    assert (answer.returncode, answer.stdout) == (1, f"not all is quiet; given up meanwhile: 0\n{UNDECLARED}")
    assert count(here, "shop_sent_emails") == 1


def test_a_delayed_job_leaves_the_outbox_when_it_is_due(here: Path):
    enqueue(here, 4711, "--delay", "2h")
    postroom("declare", "shop:jobs", cwd=here)
    assert json.loads(postroom("relay", "--drain", "--json", cwd=here).stdout)["sent"] == 0


def test_a_priority_leads_to_its_carrier(here: Path):
    (here / "urgent.py").write_text(
        "from postroom.adapters import Queue\nfrom postroom.consumers import Jobs\njobs = Jobs()\n"
        "jobs.handler('t', queue=Queue(name='mails', priorities={'high': 4, 'low': 1}))(lambda _: None)\n"
    )
    answer = postroom("enqueue", "t", "--app", "urgent:jobs", "--priority", "high", cwd=here)
    assert json.loads(answer.stdout)["queue"] == "mails.high"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--payload", "{order: 1}"], "postroom: payload: this is not JSON: "),
        (["--payload", "NaN"], "postroom: payload: this is not JSON: "),
        (["--key", ""], "postroom: key: '' has 0 bytes, and a key has 1 to 400"),
        (["--queue", "a b"], "postroom: queue name 'a b': use 1 to 200 of the characters A-Z a-z 0-9 . _ -"),
        (["--delay", "soon"], "'soon' is no duration; write it like 500ms, 10s, 5m, 2h or 1h30m"),
        (["--app", "shop:jobs", "--queue", "other"], "shop:jobs has no queue 'other'; its queues are emails"),
        (["--database", "oracle://u:secret@h/d"], "postroom: 'oracle://u:***@h/d': no database answers to 'oracle'"),
    ],
)
def test_what_can_not_be_enqueued_is_refused_with_the_reason(here: Path, options: list[str], said: str):
    answer = postroom("enqueue", "t", *(["--queue", "q"] if "--queue" not in options else []), *options, cwd=here)
    assert answer.returncode == 2
    assert said in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert count(here, "postroom_outbox") == 0


def test_a_type_without_a_handler_in_the_application_is_told(here: Path):
    answer = postroom("enqueue", "send-invoice", "--app", "shop:jobs", cwd=here)
    assert answer.returncode == 2
    assert "shop:jobs has no handler for 'send-invoice'; its queues are emails" in answer.stderr


def test_a_database_that_does_not_answer_is_named_without_its_password(tmp_path: Path):
    for url in ("postgresql://postroom:secret@127.0.0.1:1/shop", "mysql://postroom:secret@127.0.0.1:1/shop"):
        for arguments in (
            ["status", "order-4711"],
            ["stats"],
            ["schema", "check"],
            ["enqueue", "t", "--queue", "q"],
            ["relay", "--once"],
            ["dead", "list"],
        ):
            answer = postroom("--database", url, *arguments, cwd=tmp_path)
            assert answer.returncode == 3, answer.stderr
            assert answer.stderr.count("\n") == 1
            assert "postroom:***@127.0.0.1:1/shop" in answer.stderr
            assert "secret" not in answer.stderr


def test_a_right_that_lacks_is_told_as_that_and_not_as_a_wrong_password(server_database_url: str, tmp_path: Path):
    assert postroom("--database", server_database_url, "schema", "create", cwd=tmp_path).returncode == 0
    answer = postroom("--database", stranger(server_database_url), "status", "order-4711", cwd=tmp_path)
    assert answer.returncode == 3
    assert answer.stderr.endswith("; the user may log in and lacks a right: GRANT it\n")
    assert "stranger-secret" not in answer.stderr


def stranger(url: str) -> str:
    """The same database for a user who may log in, and see none of its tables."""
    engine, mine = open_engine(url), make_url(url)
    is_postgres = engine.dialect.name == "postgresql"
    with engine.begin() as connection:
        connection.execute(text("DROP USER IF EXISTS stranger"))
        connection.execute(text(f"CREATE USER stranger {'PASSWORD' if is_postgres else 'IDENTIFIED BY'} 'stranger-secret'"))
        if not is_postgres:
            connection.execute(text(f"GRANT CREATE TEMPORARY TABLES ON `{mine.database}`.* TO stranger"))
    engine.dispose()
    return mine.set(username="stranger", password="stranger-secret").render_as_string(hide_password=False)  # noqa: S106 - none


def test_a_wrong_password_is_told_without_it(postgres_url: str, tmp_path: Path):
    url = re.sub(r":[^:/@]+@", ":wrong-secret@", postgres_url)
    answer = postroom("--database", url, "stats", cwd=tmp_path)
    assert answer.returncode == 3
    assert "check the user, the password and the database's name" in answer.stderr
    assert "wrong-secret" not in answer.stderr


def test_relay_once_sends_what_is_due(here: Path):
    postroom("declare", "shop:jobs", cwd=here)
    enqueue(here, 4711)
    answer = postroom("relay", "--once", cwd=here)
    assert (answer.returncode, answer.stdout) == (0, "sent 1\n")
    assert count(here, "postroom_outbox", "status = 'sent'") == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_relay_is_stopped_by_a_signal(here: Path, number: int, code: int):
    with running("relay", cwd=here) as relay:
        assert relay.stderr.readline() == "postroom: the relay runs; Ctrl-C stops it\n"
        relay.send_signal(number)
        assert relay.wait(timeout=60) == code


def test_what_a_relay_logs_has_its_time_and_level(here: Path):
    enqueue(here, 4711)
    with running("--broker", "amqp://127.0.0.1:1", "relay", cwd=here) as relay:
        relay.stderr.readline()
        line = relay.stderr.readline()
        relay.terminate()
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ WARNING postroom\.\S+ relay \S+: degraded, trying again: can't connect to RabbitMQ", line)


def test_work_sends_the_emails_and_ends_when_all_is_quiet(here: Path):
    for order in (4711, 4712):
        enqueue(here, order)
    answer = postroom("work", "shop:jobs", "--drain", cwd=here)
    assert (answer.returncode, answer.stdout) == (0, "all is quiet; given up meanwhile: 0\n")
    assert count(here, "shop_sent_emails") == 2


def test_draining_nothing_gives_no_warning(here: Path):
    answer = postroom("work", "shop:jobs", "--drain", "--processes", "3", cwd=here)
    assert (answer.returncode, answer.stdout) == (0, "all is quiet; given up meanwhile: 0\n")
    assert "WARNING" not in answer.stderr


@pytest.mark.parametrize("name", ["postroom/__init__.py", "queue.py", "logging.py", "signal.py"])
def test_modules_of_the_applications_do_not_stand_in_for_others(here: Path, name: str):
    (here / name).parent.mkdir(exist_ok=True)
    (here / name).write_text("raise RuntimeError('not the one that was meant')\n")
    enqueue(here, 4711)
    answer = postroom("work", "shop:jobs", "--drain", cwd=here)
    assert answer.returncode == 0, answer.stderr
    assert count(here, "shop_sent_emails") == 1


BROKEN_CHILDREN = {
    "ends": ("os._exit(7)", 3, "postroom: no worker process can start: 5 in a row ended before they were ready, the last with exit code 7"),
    "refuses": ("raise RuntimeError('no settings')", 2, "postroom: a worker process can't work with this configuration; its log says why"),
}


@pytest.mark.parametrize(("line", "code", "said"), BROKEN_CHILDREN.values(), ids=BROKEN_CHILDREN.keys())
def test_processes_that_can_not_start_are_no_success(here: Path, line: str, code: int, said: str):
    (here / "shop.py").write_text(f"{SHOP}\nif sys.modules['__main__'].__spec__.name.endswith('.child'):\n    {line}\n")
    answer = postroom("work", "shop:jobs", "--drain", cwd=here)  # of nothing: all would be quiet
    assert (answer.returncode, answer.stdout) == (code, "")
    assert answer.stderr.splitlines()[-1] == said


def test_what_is_worked_on_is_said_when_the_queues_are_there(here: Path):
    (here / "empty.py").write_text("from postroom.consumers import Jobs\njobs = Jobs()\n")
    empty = postroom("work", "empty:jobs", cwd=here)
    assert (empty.returncode, empty.stderr) == (2, "postroom: there is no handler: declare one with @jobs.handler(...)\n")
    away = postroom("work", "shop:jobs", "--broker", "postgresql://u:secret@127.0.0.1:1/q", cwd=here)
    assert away.returncode == 3
    assert "working on" not in away.stderr


def test_several_processes_do_not_see_one_memory(here: Path):
    answer = postroom("work", "shop:jobs", "--processes", "2", "--broker", "memory:", cwd=here)
    assert answer.returncode == 2
    assert answer.stderr == "postroom: memory: is seen by one process only; for --processes name a broker that all of them see\n"


def test_only_schema_and_demo_make_a_file(here: Path, tmp_path: Path):
    (tmp_path / "postroom.db").unlink()
    commands = [
        "status k",
        "stats",
        "dead list",
        "enqueue t --queue q",
        "relay --once",
        "work shop:jobs --drain",
        "declare shop:jobs",
        "schema check",
    ]
    for command in commands:
        answer = postroom(*command.split(), cwd=tmp_path)
        assert answer.returncode == (1 if command == "schema check" else 3)
        assert "sqlite:///postroom.db: there is no such file; run `postroom schema create`\n" in answer.stderr + answer.stdout
        assert not list(tmp_path.glob("postroom.db*"))


def test_work_with_drain_says_no_when_a_job_was_given_up(here: Path):
    enqueue(here, "oops")
    answer = postroom("work", "shop:jobs", "--drain", "--json", cwd=here)
    assert answer.returncode == 1
    assert json.loads(answer.stdout) == {"failed": 1, "held": 0, "signal": None}


def test_work_without_a_relay_leaves_the_outbox_alone(here: Path):
    postroom("declare", "shop:jobs", cwd=here)
    enqueue(here, 4711)
    postroom("relay", "--drain", cwd=here)
    enqueue(here, 4712)
    with running("work", "shop:jobs", "--no-relay", cwd=here) as worker:
        wait_for_emails(here, worker, 1)
    assert count(here, "postroom_outbox", "key = 'order-4712' AND status = 'pending'") == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_worker_is_stopped_by_a_signal(here: Path, number: int, code: int):
    enqueue(here, 4711)
    with running("work", "shop:jobs", cwd=here) as worker:
        wait_for_emails(here, worker, 1)
        worker.send_signal(number)
        assert worker.wait(timeout=60) == code


def test_work_in_memory_runs_in_the_one_process(here: Path):
    enqueue(here, 4711)
    answer = postroom("work", "shop:jobs", "--broker", "memory:", "--drain", cwd=here)
    assert answer.returncode == 0, answer.stderr
    assert count(here, "shop_sent_emails") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--queues", "other"], "no handler has the queue other; there are: emails"),
        (["--lease", "0s"], "lease must be more than 0 seconds"),
        (["--concurrency", "0"], "Invalid value for '--concurrency'"),
        (["--grace", "5"], "'5' is no duration"),
    ],
)
def test_settings_that_can_not_work_are_refused_at_start(here: Path, options: list[str], said: str):
    answer = postroom("work", "shop:jobs", *options, cwd=here)
    assert answer.returncode == 2
    assert said in answer.stderr


def test_the_shop_queue_is_what_the_readme_says():
    assert shop.jobs.queues == {"emails": Queue(name="emails")}


def wait_for_emails(here: Path, worker: subprocess.Popen[str], number: int) -> None:
    def are_there() -> bool:
        assert worker.poll() is None
        return count(here, "shop_sent_emails") == number

    eventually(are_there)
