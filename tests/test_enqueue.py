"""A job in the caller's transaction: what is written, where it goes, and in which kinds of session."""

import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import pytest
from sqlalchemy import Engine, Row, event, select, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from postroom.adapters.errors import ConfigurationError, InvalidMessage, SchemaDrift
from postroom.adapters.seam import Queue
from postroom.adapters.sql.engine import open_engine
from postroom.adapters.sql.metadata import metadata
from postroom.outbox import Draft, Outbox
from postroom.outbox.envelope import read_envelope
from postroom.outbox.rows import MESSAGE, insert_rows, lane_of, message_of
from postroom.outbox.tables import CHANNEL, LANES, outbox


@dataclass
class Receipt:
    order_id: int


def stored(engine: Engine) -> list[Row]:
    with engine.connect() as connection:
        return list(connection.execute(select(outbox).order_by(outbox.c.seq)))


def test_a_job_is_one_row_with_everything_encoded(engine: Engine) -> None:
    before = time.time()
    with Session(engine) as session:
        job_id = Outbox("emails").enqueue(session, "send-receipt", Receipt(4711), key="order-4711", headers={"trace": b"\0\xff"})
        session.commit()
    [row] = stored(engine)
    assert (row.id, row.queue, row.type, row.key, row.ordering_key) == (job_id, "emails", "send-receipt", "order-4711", "order-4711")
    assert (row.status, row.attempts, row.ordered, row.lane) == ("pending", 0, False, lane_of("order-4711"))
    assert (row.retry_at, row.holds, row.last_error, row.sent_at) == (None, None, None, None)
    assert row.body == b'{"order_id":4711}'
    assert before - 5 < row.enqueued_at < time.time() + 5
    assert row.available_at == pytest.approx(row.enqueued_at, abs=0.01)


def test_the_message_of_a_row_has_the_envelope_and_the_users_headers(engine: Engine) -> None:
    with engine.begin() as connection:
        job_id = Outbox("emails").enqueue(
            connection,
            "send-receipt",
            {"order_id": 4711},
            key="order-4711",
            ordering_key="customer-1",
            headers={"a": 1, "b": "ä", "c": None, "d": True},
        )
    with engine.connect() as connection:
        row = connection.execute(select(*MESSAGE)).one()
    message = message_of(row)
    envelope = read_envelope(message)
    assert (message.id, message.queue, message.body, message.ordering_key) == (job_id, "emails", b'{"order_id":4711}', "customer-1")
    assert (envelope.id, envelope.type, envelope.key, envelope.ordering_key) == (job_id, "send-receipt", "order-4711", "customer-1")
    assert (envelope.copy, envelope.replays, envelope.enqueued_at) == (0, 0, row.enqueued_at)
    assert envelope.headers == {"a": 1, "b": "ä", "c": None, "d": True}


def test_a_job_without_a_key_is_keyed_by_its_id(engine: Engine) -> None:
    with engine.begin() as connection:
        job_id = Outbox("emails").enqueue(connection, "ping", None)
    [row] = stored(engine)
    assert row.key == row.ordering_key == job_id


def test_a_delay_moves_the_row_back_in_the_line_and_leaves_its_birth(engine: Engine) -> None:
    with engine.begin() as connection:
        Outbox("emails").enqueue(connection, "ping", None, delay=90.5)
    [row] = stored(engine)
    assert row.available_at - row.enqueued_at == pytest.approx(90.5, abs=0.01)


@pytest.mark.parametrize("key", ["order-4711", " order-4711 ", "ORDER-4711", "ördér-4711", "order-4711\n", "k" * 400, "ü" * 200])
def test_a_key_is_stored_byte_for_byte(engine: Engine, key: str) -> None:
    with engine.begin() as connection:
        Outbox("emails").enqueue(connection, "ping", None, key=key)
    with engine.connect() as connection:
        assert connection.execute(select(outbox.c.key).where(outbox.c.key == key)).scalars().all() == [key]


def test_many_jobs_are_written_in_their_order(engine: Engine) -> None:
    drafts = [Draft(type="ping", payload=number, key=f"k{number % 3}", delay=number % 2) for number in range(250)]
    with engine.begin() as connection:
        ids = Outbox("emails").enqueue_many(connection, drafts)
    rows = stored(engine)
    assert [row.id for row in rows] == ids
    assert [row.body for row in rows] == [str(number).encode() for number in range(250)]
    by_place = sorted(
        (row for row in rows if row.key == "k1" and row.available_at - row.enqueued_at < 0.5), key=lambda row: (row.available_at, row.seq)
    )
    assert by_place == [row for row in rows if row in by_place]


def test_no_jobs_at_all_are_no_statement(sqlite_engine: Engine) -> None:
    with sqlite_engine.begin() as connection:
        assert Outbox("emails").enqueue_many(connection, []) == []
    assert stored(sqlite_engine) == []


def test_one_refused_draft_means_that_none_is_written(sqlite_engine: Engine) -> None:
    drafts = [Draft(type="ping", payload=1), Draft(type="ping", payload={"price": float("nan")})]
    with sqlite_engine.begin() as connection, pytest.raises(InvalidMessage, match=r"^drafts\[1\]\.payload\.price: NaN is not JSON$"):
        Outbox("emails").enqueue_many(connection, drafts)
    assert stored(sqlite_engine) == []


def test_after_a_refusal_the_callers_transaction_goes_on(engine: Engine) -> None:
    with engine.begin() as connection:
        with pytest.raises(InvalidMessage):
            Outbox("emails").enqueue(connection, "ping", float("inf"))
        Outbox("emails").enqueue(connection, "ping", "good")
    assert [row.body for row in stored(engine)] == [b'"good"']


def test_a_scoped_session_is_a_session(sqlite_engine: Engine) -> None:
    session = scoped_session(sessionmaker(sqlite_engine))
    Outbox("emails").enqueue(session, "ping", None)
    session.commit()
    session.remove()
    assert len(stored(sqlite_engine)) == 1


def test_one_job_is_one_statement(engine: Engine) -> None:
    seen: list[str] = []
    with engine.begin() as connection:
        event.listen(connection, "before_cursor_execute", lambda _connection, _cursor, statement, *_: seen.append(statement))
        Outbox("emails").enqueue(connection, "ping", None)
    assert len(seen) == 1
    assert seen[0].startswith("INSERT INTO postroom_outbox")


def test_missing_tables_are_told_with_the_remedy(database_url: str) -> None:
    engine = open_engine(database_url)
    with engine.connect() as connection, pytest.raises(SchemaDrift, match="postroom schema create"):
        Outbox("emails").enqueue(connection, "ping", None)
    engine.dispose()


def test_rows_written_elsewhere_than_by_an_outbox_go_the_same_way(engine: Engine) -> None:
    row = Outbox("emails").row("ping", {"n": 1}, key="k")
    with engine.begin() as connection:
        insert_rows(connection, [row])
    assert [stored_row.id for stored_row in stored(engine)] == [row["id"]]


def test_a_schema_translation_of_the_callers_is_kept(postgresql_database_url: str) -> None:
    engine = open_engine(postgresql_database_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA tenant"))
    tenant = engine.execution_options(schema_translate_map={None: "tenant"})
    metadata.create_all(tenant)
    with tenant.begin() as connection:
        Outbox("emails").enqueue(connection, "ping", None)
    assert len(stored(tenant)) == 1
    engine.dispose()


# Where a job goes


MAIL = Queue(name="emails")
ORDERED = Queue(name="ledger", ordered=True)
SPLIT = Queue(name="exports", priorities={"high": 4, "low": 1})
TOPIC = Queue(name="orders", groups=("billing", "shipping"))


def placed(outbox_: Outbox, **options: object) -> tuple[str, bool]:
    row = outbox_.row("ping", None, **options)
    return row["queue"], row["ordered"]


def test_a_job_goes_to_the_queue_and_the_priority_that_it_names() -> None:
    box = Outbox(MAIL, queues=[ORDERED, SPLIT, TOPIC, "reports"])
    assert placed(box) == ("emails", False)
    assert placed(box, queue="reports") == ("reports", False)
    assert placed(box, queue="ledger") == ("ledger", True)
    assert placed(box, queue="exports", priority="high") == ("exports.high", False)
    assert placed(box, queue="orders") == ("orders", False)
    assert placed(box, queue=SPLIT, priority="low") == ("exports.low", False)
    assert placed(box, queue=Queue(name="unheard-of", ordered=True)) == ("unheard-of", True)


def test_the_outbox_may_choose_the_priority_of_those_who_choose_none() -> None:
    box = Outbox(SPLIT, priority="low")
    assert placed(box) == placed(box, priority="low") == ("exports.low", False)
    assert placed(box, priority="high") == ("exports.high", False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue": "emials"}, r"^queue: 'emials' is not a queue of this outbox \(emails, exports\)"),
        ({"queue": "exports", "priority": "urgent"}, r"^priority: 'urgent' is none of queue 'exports', which has high, low"),
        ({"queue": "exports"}, r"^priority: queue 'exports' is split; name one of high, low"),
        ({"priority": "high"}, r"^priority: 'high' is none of queue 'emails', which has no priorities"),
        ({"queue": MAIL, "priority": "high"}, r"^priority: 'high' is none of queue 'emails'"),
        ({"queue": ["emails"]}, r"^queue: \['emails'\] is not a queue"),
        ({"queue": "exports", "priority": ["high"]}, r"^priority: \['high'\] is none of"),
    ],
)
def test_a_queue_or_priority_that_does_not_exist_is_told_at_once(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidMessage, match=message):
        placed(Outbox(MAIL, queues=[SPLIT]), **options)


def test_options_that_can_not_work_are_refused_when_the_outbox_is_made() -> None:
    with pytest.raises(ConfigurationError, match="max_payload"):
        Outbox("emails", max_payload=0)
    with pytest.raises(ConfigurationError, match="priority 'urgent' is in none of its queues"):
        Outbox(SPLIT, priority="urgent")
    with pytest.raises(ConfigurationError, match="queue name"):
        Outbox("e mails")


def test_an_unknown_option_is_a_type_error(sqlite_engine: Engine) -> None:
    with sqlite_engine.begin() as connection, pytest.raises(TypeError, match="retries"):
        Outbox("emails").enqueue(connection, "ping", None, retries=3)


# Waking relays on PostgreSQL


def notified(url: str, outbox_: Outbox, *, commit: bool) -> int:
    """How many notifications a listener gets from a transaction with two jobs, one by one, and two more at once."""
    engine = open_engine(url)
    metadata.create_all(engine)
    listener = engine.raw_connection()
    try:
        driver = listener.driver_connection
        driver.autocommit = True
        driver.execute(f"LISTEN {CHANNEL}")
        with engine.connect() as connection:
            outbox_.enqueue(connection, "ping", 1)
            outbox_.enqueue(connection, "ping", 2)
            outbox_.enqueue_many(connection, [Draft(type="ping", payload=3), Draft(type="ping", payload=4)])
            connection.commit() if commit else connection.rollback()
            connection.execute(text("SELECT pg_notify('postroom_outbox', 'end')"))
            connection.commit()
        payloads = [notification.payload for notification in driver.notifies(timeout=10, stop_after=1)]
        while payloads[-1] != "end":
            payloads += [notification.payload for notification in driver.notifies(timeout=10, stop_after=1)]
        return len(payloads) - 1
    finally:
        listener.detach()
        driver.close()
        engine.dispose()


def test_a_commit_wakes_the_relays_once(postgresql_database_url: str) -> None:
    assert notified(postgresql_database_url, Outbox("emails"), commit=True) == 1


def test_a_rollback_wakes_nobody(postgresql_database_url: str) -> None:
    assert notified(postgresql_database_url, Outbox("emails"), commit=False) == 0


def test_notify_can_be_turned_off(postgresql_database_url: str) -> None:
    assert notified(postgresql_database_url, Outbox("emails", notify=False), commit=True) == 0


# Order and lanes


def test_s058_a_row_that_commits_late_has_a_lower_number_than_one_that_is_there_already(server_database_url: str) -> None:
    engine = open_engine(server_database_url)
    metadata.create_all(engine)
    with engine.connect() as early, engine.connect() as late:
        first = Outbox("emails").enqueue(early, "ping", "first")
        second = Outbox("emails").enqueue(late, "ping", "second")
        late.commit()
        seen_before = stored(engine)
        early.commit()
    assert [row.id for row in seen_before] == [second]
    assert [row.id for row in stored(engine)] == [first, second]
    assert [row.status for row in stored(engine)] == ["pending", "pending"]
    engine.dispose()


def test_lanes_spread_keys_evenly_and_never_change() -> None:
    assert [lane_of(key) for key in ("order-4711", "order-4712", "ä")] == [15, 53, 3]
    counts = [0] * LANES
    for number in range(6400):
        counts[lane_of(f"order-{number}")] += 1
    assert min(counts) > 50
    assert max(counts) < 150


def test_an_outbox_is_shared_by_threads(engine: Engine) -> None:
    box = Outbox("emails")
    ids: list[str] = []

    def work() -> None:
        for number in range(20):
            with engine.begin() as connection:
                ids.append(box.enqueue(connection, "ping", number))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(row.id for row in stored(engine)) == sorted(ids)
    assert len(set(ids)) == 80


def test_importing_the_outbox_loads_no_client_library_no_orm_and_no_command_line() -> None:
    heavy = ("pika", "confluent_kafka", "psycopg", "pymysql", "pydantic", "click", "rich", "sqlalchemy.orm", "sqlalchemy.ext.asyncio")
    script = f"import sys, postroom.outbox; print([name for name in {heavy!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
