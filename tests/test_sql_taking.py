"""How the SQL adapter takes jobs: what is locked, what is looked at, and what happens when two takes meet."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, String, case, cast, event, func, insert, literal, null, select, text, update
from sqlalchemy.dialects.postgresql import BYTEA
from sqlalchemy.exc import IntegrityError, OperationalError

from postroom.adapters.seam import Message, Queue
from postroom.adapters.sql.dialects import dialect_of
from postroom.adapters.sql.due import next_in_line, oldest
from postroom.adapters.sql.engine import open_engine
from postroom.adapters.sql.statements import BY_ARRAY, LAPSED, OLD, RECLAIM
from postroom.adapters.sql.tables import jobs
from postroom.adapters.sql.taking import Take
from support.databases import connected
from support.sql import Broker, broker_at
from support.workers import eventually


@pytest.fixture
def broker(database_url: str) -> Iterator[Broker]:
    with broker_at(database_url, Queue(name="emails"), Queue(name="orders", ordered=True)) as broker:
        yield broker


def _request(carrier: str, most: int) -> Mapping[str, Any]:
    return {"carrier": carrier, "most": most, "receipt": uuid4().hex, "holder": "test", "lease": 30.0}


def _way(engine: Engine, carrier: str) -> Take:
    takes = dialect_of(engine).takes
    return takes.in_order if carrier == "orders" else takes.plain


def _take(engine: Engine, carrier: str = "emails", most: int = 1) -> list[str]:
    with engine.begin() as connection:
        return [row.id for row in _way(engine, carrier)(connection, _request(carrier, most))]


@pytest.mark.parametrize("queue", ["emails", "orders"])
def test_s073_of_two_takes_that_meet_one_gets_the_job(broker: Broker, queue: str) -> None:
    broker.publish("one", queue=queue, key="k")
    with ThreadPoolExecutor() as pool:
        with broker.engine.begin() as connection:
            first = _way(broker.engine, queue)(connection, _request(queue, 10))
            second = pool.submit(_take, broker.engine, queue, 10)
            if broker.engine.dialect.name != "sqlite":  # there it waits for us to end
                second.result(30)
        assert ([row.id for row in first], second.result(60)) == (["one"], [])


@pytest.mark.parametrize("queue", ["emails", "orders"])
def test_s073_the_claim_is_a_conditional_update_also_where_no_row_can_be_locked(server_database_url: str, queue: str) -> None:
    """Another worker, who finds the job without a lock before ours is committed, waits to claim it: it must not be his then."""
    queues = Queue(name="emails"), Queue(name="orders", ordered=True)
    with broker_at(server_database_url, *queues) as broker, _without_row_locks(server_database_url) as other, ThreadPoolExecutor() as pool:
        broker.publish("one", queue=queue, key="k")
        with broker.engine.begin() as connection:
            [taken] = _way(broker.engine, queue)(connection, {**_request(queue, 10), "holder": "first"})
            second = pool.submit(_take, other, queue, 10)
            with connected(server_database_url) as observer:
                eventually(lambda: observer.execute(text(WAITING[observer.dialect.name])).scalar_one() == 1)
        second.result(60)
        assert (taken.id, broker.rows()["one"].worker) == ("one", "first")


WAITING = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
    "mysql": "SELECT count(*) FROM information_schema.processlist WHERE db = database() AND info LIKE 'UPDATE postroom_jobs%'",
}
"""How many wait for the lock of a row in this database. (InnoDB would say it too, but not to one who asks ten times a second.)"""


@contextmanager
def _without_row_locks(url: str) -> Iterator[Engine]:
    """As SQLite is: no SELECT locks what it finds."""
    engine = open_engine(url)

    def strip(_connection: object, _cursor: object, statement: str, parameters: object, *_: object) -> tuple[str, object]:
        return statement.replace(" FOR UPDATE SKIP LOCKED", ""), parameters

    event.listen(engine, "before_cursor_execute", strip, retval=True)
    try:
        yield engine
    finally:
        engine.dispose()


def test_s083_a_take_locks_no_more_than_it_returns(server_database_url: str) -> None:
    with broker_at(server_database_url) as broker:
        broker.publish(*(f"job-{number:03}" for number in range(200)))
        with broker.engine.begin() as connection:
            _way(broker.engine, "emails")(connection, _request("emails", 10))
            assert _take(broker.engine, most=5) == [f"job-{number:03}" for number in range(10, 15)]


def test_one_job_of_a_line_runs_at_a_time_even_when_a_job_with_an_earlier_place_comes_late(broker: Broker) -> None:
    broker.publish("second", queue="orders", key="k")
    assert _take(broker.engine, "orders", 10) == ["second"]
    broker.publish("first", queue="orders", key="k")
    with broker.engine.begin() as connection:
        connection.execute(update(jobs).where(jobs.c.id == "first").values(due_at=1.0, available_at=1.0))
    assert _take(broker.engine, "orders", 10) == []


def test_the_database_itself_allows_one_running_job_of_a_line(broker: Broker) -> None:
    broker.publish("a", "b", queue="orders", key="k")
    running = {"status": "running", "token": "t", "lease_until": 9e9, "taken_at": 1.0, "in_flight": jobs.c.line}
    with pytest.raises(IntegrityError), broker.engine.begin() as connection:
        connection.execute(update(jobs).values(running))


@pytest.mark.parametrize(
    "impossible",
    [
        {"status": "lost"},
        {"attempts": 6},
        {"attempts": -1},
        {"status": "running"},
        {"token": "t"},
        {"status": "done"},
        {"finished_at": 1.0},
        {"status": "failed", "finished_at": 1.0},
    ],
    ids=str,
)
def test_impossible_states_can_not_be_stored(broker: Broker, impossible: Mapping[str, object]) -> None:
    broker.publish("one", max_attempts=5)
    with pytest.raises((IntegrityError, OperationalError)), broker.engine.begin() as connection:  # the latter is MariaDB's for a CHECK
        connection.execute(update(jobs).values(impossible))


def test_jobs_behind_a_long_line_are_found_beyond_the_ones_that_are_looked_at_first(broker: Broker) -> None:
    hot = [Message(id=f"hot-{number}", queue="orders", body=b"", ordering_key="hot") for number in range(700)]
    broker.adapter.publish(hot)
    with broker.engine.begin() as connection:  # the first of the line waits for its retry
        connection.execute(update(jobs).where(jobs.c.id == "hot-0").values(available_at=jobs.c.available_at + 3600))
        connection.execute(update(jobs).values(due_at=jobs.c.due_at - 60, available_at=jobs.c.available_at - 60))
    broker.publish("other", queue="orders", key="other")
    assert _take(broker.engine, "orders", 10) == ["other"]


def test_two_threads_that_take_from_one_line_never_fail(broker: Broker) -> None:
    broker.publish(*(f"job-{number:03}" for number in range(60)), queue="orders", key="k")
    start, seen = threading.Barrier(2), []

    def work(name: str) -> None:
        consumer = broker.consumer("orders", name=name)
        start.wait()
        while len(seen) < 60:
            for delivery in consumer.receive(10, 0.01):
                seen.append(delivery.message.id)
                consumer.ack([delivery])

    with ThreadPoolExecutor() as pool:
        for result in [pool.submit(work, name) for name in ("a", "b")]:
            result.result(120)
    assert seen == [f"job-{number:03}" for number in range(60)]


def _plan(engine: Engine, statement: Any, **parameters: object) -> str:
    compiled = statement.compile(dialect=engine.dialect)
    with engine.connect() as connection:
        return "\n".join(connection.exec_driver_sql(f"EXPLAIN {compiled}", compiled.construct_params(parameters)).scalars())


def test_s082_each_statement_of_the_hot_path_reads_one_narrow_index(postgresql_database_url: str) -> None:
    with broker_at(postgresql_database_url, Queue(name="emails"), Queue(name="orders", ordered=True)) as broker:
        _fill(broker.engine)
        seqs = list(range(100, 228))
        index_of = {
            "postroom_jobs_due": [
                _plan(broker.engine, oldest("seq"), carrier="emails", most=128),
                *(_plan(broker.engine, statement, carrier="orders", most=128) for statement in next_in_line("seq")),
            ],
            "postroom_jobs_pkey": [_plan(broker.engine, statement, seqs=seqs, receipt="r") for statement in (BY_ARRAY.ack, BY_ARRAY.release)],
            "postroom_jobs_leases": [_plan(broker.engine, statement) for statement in (LAPSED, RECLAIM)],
            "postroom_jobs_done": [_plan(broker.engine, OLD, age=10.0, most=1000)],
        }
    for index, plans in index_of.items():
        for plan in plans:
            assert index in plan
            assert "Seq Scan" not in plan


def _fill(engine: Engine) -> None:
    """Many jobs that are done, some that wait, and no statistics: as it is a minute after a start."""
    number = func.generate_series(1, 20_000).column_valued("number")
    is_done = number > 2_000
    values = {
        "id": cast(number, String),
        "body": cast(b"", BYTEA),
        "headers": cast(b"", BYTEA),
        "status": case((is_done, "done"), else_="pending"),
        "finished_at": case((is_done, number)),
        **dict.fromkeys(("attempts", "replays"), literal(0)),
        **dict.fromkeys(("max_attempts", "enqueued_at", "due_at", "available_at"), number),
    }
    with engine.begin() as connection:
        for queue, line in {"emails": null(), "orders": literal("k") + cast(number % 500, String)}.items():
            row = values | {"queue": literal(queue), "line": line}
            connection.execute(insert(jobs).from_select([*row], select(*row.values())))
