"""Relays in processes of their own: killed with SIGKILL, and several at once on one database."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes import Scripted
from sqlalchemy import Engine, func, select

from postroom.outbox.envelope import Envelope
from postroom.outbox.options import RelayOptions
from postroom.outbox.relay import Relay
from postroom.outbox.rows import build_row, insert_rows
from postroom.outbox.tables import lanes, outbox
from support.outboxes import enqueue, enqueue_ids, new_row, outbox_at, statuses

SCRIPT = Path(__file__).parent / "apps" / "relay_to_file.py"
LEASE = 2.0


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(f"{request.param}_database_url")


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    with outbox_at(url) as engine:
        yield engine


@pytest.fixture
def start(url: str, tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts a relay process that writes to tmp_path/messages; all of them are dead at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(mode: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, SCRIPT, url, tmp_path / "messages", mode, str(LEASE)]))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def messages_in(tmp_path: Path) -> list[dict[str, str]]:
    path = tmp_path / "messages"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("it never came true")
        time.sleep(0.02)


def kill_between_confirm_and_mark(start: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path) -> None:
    relay = start("stall")
    wait_until((tmp_path / "messages.confirmed").exists)
    relay.kill()
    assert relay.wait() == -9


def test_s062_killed_between_confirm_and_mark_a_row_is_sent_again_with_the_same_id(engine, start, tmp_path):
    enqueue(engine, new_row("job-1", "order-4711"))
    kill_between_confirm_and_mark(start, tmp_path)
    assert statuses(engine) == {"job-1": "pending"}
    assert start("drain").wait(60) == 0
    assert statuses(engine) == {"job-1": "sent"}
    assert [(message["id"], message["key"]) for message in messages_in(tmp_path)] == [("job-1", "order-4711")] * 2
    assert len({message["by"] for message in messages_in(tmp_path)}) == 2


def test_s063_the_rows_of_a_killed_relay_are_sent_by_another_within_its_lease_and_none_more_than_twice(engine, start, tmp_path):
    enqueue_ids(engine, *(f"job-{number}" for number in range(120)))
    kill_between_confirm_and_mark(start, tmp_path)
    killed_at = time.monotonic()
    start("run")
    wait_until(lambda: set(statuses(engine).values()) == {"sent"})
    assert time.monotonic() - killed_at >= LEASE / 2, "the lease was not ignored"
    counts = Counter(message["id"] for message in messages_in(tmp_path))
    assert len(counts) == 120
    assert sorted(set(counts.values())) == [1, 2]
    assert list(counts.values()).count(2) == 50, "only the batch in flight is sent twice"


def test_s068_three_relay_processes_keep_the_order_of_every_key(engine, start, tmp_path):
    relays = [start("run") for _ in range(3)]
    wait_until(lambda: len(holders(engine)) == 3)
    keys = [f"key-{number}" for number in range(30)]
    for turn in range(10):
        enqueue(engine, *(new_row(f"{key}:{turn:02}", key) for key in keys))
    wait_until(lambda: len({message["by"] for message in messages_in(tmp_path)}) == 3)
    relays.pop().kill()
    wait_until(lambda: set(statuses(engine).values()) == {"sent"})
    assert_each_key_in_order([message["id"] for message in messages_in(tmp_path)], keys, turns=10)


def test_s068_two_relays_with_a_slow_broker_keep_the_order_of_every_key(engine):
    broker = Scripted(atomic=False)
    broker.before = lambda _: time.sleep(0.002)
    keys = [f"key-{number}" for number in range(20)]
    options = RelayOptions(batch=20, lease=0.5, poll_min=0.001, poll_max=0.01)
    stop = threading.Event()
    relays = [threading.Thread(target=Relay(engine, broker, options=options).run, args=(stop,)) for _ in range(2)]
    for relay in relays:
        relay.start()
    wait_until(lambda: len(holders(engine)) == 2)
    enqueue(engine, *(new_row(f"{key}:{turn:02}", key) for turn in range(10) for key in keys))
    wait_until(lambda: set(statuses(engine).values()) == {"sent"})
    stop.set()
    for relay in relays:
        relay.join()
    assert_each_key_in_order(broker.ids, keys, turns=10)


def holders(engine: Engine) -> set[str]:
    """The relays that hold lanes."""
    with engine.connect() as connection:
        return set(connection.execute(select(lanes.c.relay).where(lanes.c.relay.is_not(None))).scalars())


def assert_each_key_in_order(ids: list[str], keys: list[str], turns: int) -> None:
    """Each key's jobs arrived, first copies in order: a second copy changes nothing for whoever deduplicates."""
    arrived: defaultdict[str, list[str]] = defaultdict(list)
    for job_id in dict.fromkeys(ids):
        arrived[job_id.partition(":")[0]].append(job_id)
    assert arrived == {key: [f"{key}:{turn:02}" for turn in range(turns)] for key in keys}


def test_s074_relay_worker_and_enqueuer_on_one_sqlite_file_meet_no_lock_error(sqlite_database_url):
    with outbox_at(sqlite_database_url) as engine:
        broker = Scripted()
        with Relay(engine, broker, options=RelayOptions(poll_min=0.001, poll_max=0.01)) as relay:
            writers = [threading.Thread(target=_enqueue_one_by_one, args=(engine, f"writer-{number}", 100)) for number in range(3)]
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.join()
            wait_until(lambda: len(broker.ids) == 300)
            assert relay.health().last_error == ""


def _enqueue_one_by_one(engine: Engine, prefix: str, count: int) -> None:
    for number in range(count):
        enqueue_ids(engine, f"{prefix}-{number}")


def test_s083_four_relays_and_two_producers_on_mariadb_send_every_row_once(mariadb_database_url):
    with outbox_at(mariadb_database_url) as engine:
        broker = Scripted()
        stop = threading.Event()
        options = RelayOptions(batch=50, poll_min=0.001, poll_max=0.01, lease=5.0)
        relays = [Relay(engine, broker, options=options) for _ in range(4)]
        threads = [threading.Thread(target=relay.run, args=(stop,)) for relay in relays]
        producers = [threading.Thread(target=_enqueue_in_groups, args=(engine, f"producer-{number}", 1000)) for number in range(2)]
        for thread in (*threads, *producers):
            thread.start()
        for producer in producers:
            producer.join()
        wait_until(lambda: len(broker.ids) >= 2000)
        stop.set()
        for thread in threads:
            thread.join()
        assert {relay.health().last_error for relay in relays} == {""}
        assert Counter(broker.ids).most_common(1)[0][1] == 1
        with engine.connect() as connection:
            assert connection.execute(select(func.count()).where(outbox.c.status == "sent")).scalar() == 2000


def _enqueue_in_groups(engine: Engine, prefix: str, count: int) -> None:
    rows = []
    for number in range(count):
        envelope = Envelope(id=f"{prefix}-{number}", type="send", key=f"key-{number}", ordering_key=f"key-{number}", queue="emails")
        rows.append(build_row(envelope, b"{}", ordered=False))
    for start_at in range(0, count, 20):
        with engine.begin() as connection:
            insert_rows(connection, rows[start_at : start_at + 20])
