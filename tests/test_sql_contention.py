"""Many that take, publish and settle at once, on one database: nothing is lost, nothing runs twice, no lock shows."""

import itertools
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, insert, select, update

from postroom.adapters.errors import Unavailable
from postroom.adapters.seam import Message, Verdict
from postroom.adapters.sql.adapter import SqlAdapter
from postroom.adapters.sql.engine import open_engine, prepare
from postroom.adapters.sql.transaction import transact
from support.sql import broker_at

counters = Table("counters", MetaData(), Column("id", Integer, primary_key=True), Column("value", Integer, nullable=False))


def _all_at_once(*works: Callable[[], object]) -> None:
    """Run each in a thread of its own; raise the first error of any."""
    start = threading.Barrier(len(works))

    def work(one: Callable[[], object]) -> None:
        start.wait()
        one()

    with ThreadPoolExecutor(len(works)) as pool:
        for running in [pool.submit(work, one) for one in works]:
            running.result(300)


def _publisher(url: str, name: str, count: int, batch: int) -> Callable[[], None]:
    def work() -> None:
        messages = [Message(id=f"{name}-{number}", queue="emails", body=b"{}") for number in range(count)]
        with closing(SqlAdapter(url)) as adapter:
            while messages:
                outcomes = adapter.publish(messages[:batch])
                assert {outcome.verdict for outcome in outcomes} == {Verdict.CONFIRMED}, outcomes
                del messages[:batch]

    return work


def _worker(url: str, name: str, total: int, done: list[str]) -> Callable[[], None]:
    def work() -> None:
        with closing(SqlAdapter(url)) as adapter:
            consumer = adapter.consume({"emails": 1}, group="test", prefetch=50, name=name)
            for turn in itertools.count():
                if len(done) >= total:
                    break
                deliveries = consumer.receive(7, 0.05)
                consumer.release(deliveries[: turn % 2])
                consumer.ack(deliveries[turn % 2 :])
                done.extend(delivery.message.id for delivery in deliveries[turn % 2 :])

    return work


def _service(url: str, count: int) -> Callable[[], None]:
    """The user's own code, with an engine of its own: reads, then writes what it has read."""

    def work() -> None:
        engine = prepare(create_engine(url, connect_args={"timeout": 30.0}))
        for _ in range(count):
            with engine.begin() as connection:
                value = connection.execute(select(counters.c.value)).scalar_one()
                connection.execute(update(counters).values(value=value + 1))
        engine.dispose()

    return work


def test_s074_relay_worker_and_enqueuer_share_one_sqlite_file_and_no_lock_error_shows(sqlite_database_url: str) -> None:
    with broker_at(sqlite_database_url) as broker:
        counters.create(broker.engine)
        with broker.engine.begin() as connection:
            connection.execute(insert(counters).values(id=1, value=0))
        done: list[str] = []
        publishers = [_publisher(broker.url, name, 500, 5) for name in ("a", "b")]
        workers = [_worker(broker.url, name, 1000, done) for name in ("w1", "w2")]
        _all_at_once(*publishers, *workers, _service(broker.url, 100), _service(broker.url, 100))
        assert Counter(done) == Counter(f"{name}-{number}" for name in ("a", "b") for number in range(500))
        with broker.engine.connect() as connection:
            assert connection.execute(select(counters.c.value)).scalar_one() == 200


def test_s074_a_transaction_that_reads_first_may_write_after_another_one_wrote(sqlite_database_url: str) -> None:
    engine = open_engine(sqlite_database_url)
    counters.create(engine)
    with engine.begin() as connection:
        connection.execute(insert(counters).values(id=1, value=0))
    has_read, others_turn = threading.Event(), threading.Event()

    def other() -> None:
        has_read.wait(30)
        others_turn.set()
        transact(engine, lambda connection: connection.execute(update(counters).values(value=counters.c.value + 1)))

    def first() -> None:
        with engine.begin() as connection:
            value = connection.execute(select(counters.c.value)).scalar_one()
            has_read.set()
            others_turn.wait(30)
            connection.execute(update(counters).values(value=value + 1))

    _all_at_once(first, other)
    with engine.connect() as connection:
        assert connection.execute(select(counters.c.value)).scalar_one() == 2
    engine.dispose()


def test_a_sqlite_file_that_stays_locked_is_unavailable_in_one_line(sqlite_database_url: str) -> None:
    holder = open_engine(sqlite_database_url)
    impatient = prepare(create_engine(sqlite_database_url, connect_args={"timeout": 0.01}))
    waits: list[float] = []
    with holder.begin(), pytest.raises(Unavailable, match="database is locked") as error:
        transact(impatient, lambda connection: connection.execute(select(1)), sleep=waits.append)
    assert "\n" not in str(error.value)
    assert len(waits) == 7
    holder.dispose()
    impatient.dispose()


def test_s083_four_workers_and_two_producers_do_each_job_once_and_no_deadlock_shows(server_database_url: str) -> None:
    with broker_at(server_database_url) as broker:
        done: list[str] = []
        publishers = [_publisher(broker.url, name, 1000, 10) for name in ("a", "b")]
        workers = [_worker(broker.url, f"w{number}", 2000, done) for number in range(4)]
        _all_at_once(*publishers, *workers)
        assert Counter(done) == Counter(f"{name}-{number}" for name in ("a", "b") for number in range(1000))
        assert {row.status for row in broker.rows().values()} == {"done"}


def test_four_that_tidy_at_once_remove_what_is_old_and_done_and_nothing_else(server_database_url: str) -> None:
    with broker_at(server_database_url) as broker:
        broker.publish(*(f"done-{number}" for number in range(100)))
        consumer = broker.consumer()
        consumer.ack(consumer.receive(100, 10))
        broker.publish("dead", "running", "waiting")
        dead, _ = consumer.receive(2, 10)
        consumer.dead_letter(dead, "poison")
        removed: list[int] = []
        _all_at_once(*[lambda: removed.extend(broker.adapter.tidy(older_than=-1, limit=10) for _ in range(4))] * 4)
        assert sum(removed) == 100
        assert set(broker.rows()) == {"dead", "running", "waiting"}


FORKS = """
import os, sys
from postroom.adapters.seam import Message
from postroom.adapters.sql.adapter import SqlAdapter
from postroom.adapters.errors import Closed

adapter = SqlAdapter(sys.argv[1])
consumer = adapter.consume({"emails": 1}, group="test", prefetch=10, name="parent")
publish = lambda name: print(name, adapter.publish([Message(id=name, queue="emails", body=b"")])[0].verdict.value, flush=True)
publish("before")
[held] = consumer.receive(1, 10)
child = os.fork()
if not child:
    for number in range(20):
        adapter.publish([Message(id=f"child-{number}", queue="emails", body=b"")])
    try:
        consumer.receive(1, 0)
    except Closed as error:
        print("consumer:", error, flush=True)
    consumer.close()
    adapter.close()
    os._exit(0)
for number in range(20):
    adapter.publish([Message(id=f"parent-{number}", queue="emails", body=b"")])
assert os.waitpid(child, 0)[1] == 0
publish("after")
consumer.ack([held])
adapter.close()
"""


def test_s038_a_forked_child_opens_connections_of_its_own(database_url: str) -> None:
    with broker_at(database_url) as broker:
        told = subprocess.run([sys.executable, "-W", "error", "-c", FORKS, database_url], check=True, capture_output=True, text=True, timeout=120)
        assert told.stderr == ""
        assert "must call consume() itself" in told.stdout
        expected = {"before", "after", *(f"{who}-{number}" for who in ("child", "parent") for number in range(20))}
        assert set(broker.rows()) == expected
        assert broker.rows()["before"].status == "done"
