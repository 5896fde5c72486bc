"""Waiting for news."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from postroom.adapters.sql.engine import open_engine
from postroom.adapters.sql.wakeup import Wakeup

LONG = 60.0
"""Longer than any test waits, unless it fails."""


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = open_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def wakeup(engine: Engine) -> Iterator[Wakeup]:
    wakeup = Wakeup(engine, "postroom_test")
    wakeup.wait(0)  # PostgreSQL's connection is made by the first wait, which returns at once
    yield wakeup
    wakeup.close()


@pytest.fixture
def postgresql_engine(postgresql_database_url: str) -> Iterator[Engine]:
    engine = open_engine(postgresql_database_url)
    yield engine
    engine.dispose()


def _notify(engine: Engine, channel: str = "postroom_test") -> None:
    with engine.begin() as connection:
        connection.execute(text(f"NOTIFY {channel}"))


def _cut_listeners(engine: Engine) -> None:
    """End the server's side of each connection that listens, and wait until it has ended."""
    cut = "SELECT bool_and(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
    with engine.connect() as connection:
        assert connection.execute(text(cut)).scalar_one()


def test_nothing_happens_until_the_timeout(wakeup: Wakeup) -> None:
    assert not wakeup.wait(0)
    assert not wakeup.wait(0.01)
    assert not wakeup.wait(-1)


def test_a_wake_from_before_the_wait_counts_once(wakeup: Wakeup) -> None:
    for _ in range(3):
        wakeup.wake()
    assert wakeup.wait(LONG)
    assert not wakeup.wait(0)


def test_a_wake_by_another_thread_ends_the_wait(wakeup: Wakeup) -> None:
    waits = threading.Event()
    with ThreadPoolExecutor() as pool:
        woken = pool.submit(lambda: (waits.set(), wakeup.wait(LONG))[1])
        waits.wait(LONG)
        wakeup.wake()
        assert woken.result(LONG)


def test_more_wakes_than_anyone_reads_never_block(wakeup: Wakeup) -> None:
    for _ in range(100_000):
        wakeup.wake()
    assert wakeup.wait(LONG)


def test_a_wake_after_the_end_and_a_second_close_are_nothing(wakeup: Wakeup) -> None:
    wakeup.close()
    wakeup.close()
    wakeup.wake()


def test_a_commit_elsewhere_ends_the_wait_on_postgresql(postgresql_engine: Engine) -> None:
    wakeup = Wakeup(postgresql_engine, "postroom_test")
    assert wakeup.wait(LONG), "the first wait returns at once: nobody has listened before"
    assert not wakeup.wait(0)
    _notify(postgresql_engine, "postroom_other")
    _notify(postgresql_engine)
    assert wakeup.wait(LONG)
    assert not wakeup.wait(0)
    wakeup.close()


def test_it_takes_no_place_in_the_pool(postgresql_engine: Engine) -> None:
    wakeups = [Wakeup(postgresql_engine, "postroom_test") for _ in range(12)]  # the pool has room for ten
    assert all(wakeup.wait(LONG) for wakeup in wakeups)
    assert postgresql_engine.pool.status().startswith("Pool size: 5")
    _notify(postgresql_engine)
    assert all(wakeup.wait(LONG) for wakeup in wakeups)
    for wakeup in wakeups:
        wakeup.close()


def test_a_connection_that_is_cut_is_made_again_and_what_was_missed_is_looked_for(postgresql_engine: Engine) -> None:
    now = 0.0
    wakeup = Wakeup(postgresql_engine, "postroom_test", clock=lambda: now)
    wakeup.wait(LONG)
    _cut_listeners(postgresql_engine)
    assert wakeup.wait(LONG), "the end of the connection is news"
    while wakeup.wait(0.05):
        pass  # its last words, and its end, each in a packet of its own
    wakeup.wake()
    assert wakeup.wait(LONG), "for a while it is plain waiting"
    now = 10.0
    assert wakeup.wait(LONG), "a new connection: there may be news that nobody heard"
    _notify(postgresql_engine)
    assert wakeup.wait(LONG)
    wakeup.close()


def test_a_server_that_is_away_is_waited_for_without_an_error() -> None:
    engine = open_engine("postgresql://user@nowhere.invalid/jobs")
    wakeup = Wakeup(engine, "postroom_test")
    assert not wakeup.wait(0)
    wakeup.wake()
    assert wakeup.wait(LONG)
    with pytest.raises(OperationalError):
        engine.connect()
    wakeup.close()
