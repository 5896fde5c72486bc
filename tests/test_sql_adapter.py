"""The SQL adapter's own promises, where the conformance suite has no words for them."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from sqlalchemy import create_mock_engine, event, text, update

from postroom.adapters.errors import AccessDenied, Closed, ConfigurationError, LeaseLost, SchemaDrift, TopologyMismatch
from postroom.adapters.seam import Message, Outcome, Queue, Verdict
from postroom.adapters.sql.adapter import SqlAdapter
from postroom.adapters.sql.dialects import dialect_of
from postroom.adapters.sql.tables import jobs
from postroom.adapters.text import MAX_TEXT
from support.sql import Broker, broker_at


@pytest.fixture
def broker(database_url: str) -> Iterator[Broker]:
    with broker_at(database_url, Queue(name="emails"), Queue(name="orders", ordered=True)) as broker:
        yield broker


def _message(job_id: str, **how: object) -> Message:
    return Message(**{"id": job_id, "queue": "emails", "body": b"{}", **how})


# Publishing


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (_message("a\0b"), "id: it has a NUL"),
        (_message("\ud800"), "id: '\\ud800' is not valid Unicode"),
        (_message("x" * 201), "id: 201 bytes"),
        (_message("é" * 101), "id: 202 bytes"),
        (_message("one", ordering_key="a\0b"), "ordering_key: it has a NUL"),
        (_message("one", ordering_key="é" * 201), "ordering_key: 402 bytes"),
        (_message("one", headers={"n": 2**64}), "headers: "),
        (_message("one", headers={"n": "\ud800"}), "headers: "),
        (_message("one", headers={"n": object()}), "headers: "),
        (_message("one", delay=float("nan")), "delay: nan"),
        (_message("one", delay=-1.0), "delay: -1.0"),
        (_message("one", delay=float("inf")), "delay: inf"),
        (_message("one", max_attempts=0), "max_attempts: 0"),
        (_message("one", max_attempts=2**31), "max_attempts: 2147483648"),
    ],
    ids=lambda value: ascii(value)[:40] if isinstance(value, str) else "",
)
def test_a_message_that_could_never_be_stored_is_refused_and_its_neighbours_are_not(broker: Broker, message: Message, reason: str) -> None:
    first, refused, last = broker.adapter.publish([_message("first"), message, _message("last")])
    assert (first.verdict, last.verdict) == (Verdict.CONFIRMED, Verdict.CONFIRMED)
    assert refused.verdict is Verdict.REFUSED
    assert refused.reason.startswith(reason)
    assert list(broker.rows()) == ["first", "last"]


def test_a_message_that_only_the_database_refuses_is_found_and_its_neighbours_are_kept(server_database_url: str) -> None:
    with broker_at(server_database_url) as broker:
        with broker.engine.begin() as connection:  # a rule of the operator's own
            connection.execute(text("ALTER TABLE postroom_jobs ADD CONSTRAINT no_spam CHECK (ordering_key <> 'spam')"))
        outcomes = broker.adapter.publish([_message(name, ordering_key=key) for name, key in zip("abcde", ["", "", "spam", "", "spam"], strict=True)])
        assert [outcome.verdict.value for outcome in outcomes] == ["confirmed", "confirmed", "refused", "confirmed", "refused"]
        assert "no_spam" in outcomes[2].reason
        assert list(broker.rows()) == ["a", "b", "d"]


def test_a_body_above_what_the_server_takes_is_refused_with_both_sizes(mariadb_database_url: str) -> None:
    with broker_at(mariadb_database_url) as broker:
        with broker.engine.connect() as connection:
            packet = connection.execute(text("SELECT @@max_allowed_packet")).scalar_one()
        big, small = broker.adapter.publish([_message("big", body=b"'" * (packet // 2)), _message("small", body=b"'" * (packet // 3))])
        assert big.verdict is Verdict.REFUSED
        assert f"body: {packet // 2} bytes, and this server takes" in big.reason
        assert small.verdict is Verdict.CONFIRMED
        [delivery] = broker.consumer().receive(10, 10)
        assert delivery.message.body == b"'" * (packet // 3)


def test_a_database_that_is_away_leaves_each_outcome_unknown(broker: Broker) -> None:
    @event.listens_for(broker.engine, "before_cursor_execute")
    def _go_away(connection: object, *_: object) -> None:
        raise broker.engine.dialect.loaded_dbapi.OperationalError("the server closed the connection")

    adapter = SqlAdapter(broker.engine)
    outcomes = adapter.publish([_message("a"), _message("b")])
    assert [outcome.verdict for outcome in outcomes] == [Verdict.UNKNOWN] * 2
    assert "the server closed the connection" in outcomes[0].reason


def test_missing_tables_concern_no_message_and_are_raised(database_url: str) -> None:
    with closing(SqlAdapter(database_url)) as adapter, pytest.raises(SchemaDrift, match="postroom schema create"):
        adapter.publish([_message("a")])


def test_a_message_is_found_busy_while_its_queue_is_not_declared(broker: Broker) -> None:
    [outcome] = broker.adapter.publish([_message("a", queue="letters")])
    assert outcome == Outcome(Verdict.BUSY, "queue 'letters' is not declared; run `postroom declare ...` or start its worker")


# Keys


LOOK_ALIKES = ["Bot-A", "bot-a", "café", "cafe", "cafe\N{COMBINING ACUTE ACCENT}", "x", "x ", "x\t", "ß", "ss", "İ", "i"]


def test_s097_ids_and_keys_that_look_alike_stay_apart(broker: Broker) -> None:
    for look_alike in LOOK_ALIKES:
        broker.publish(look_alike, queue="orders", key=look_alike)
    deliveries = broker.consumer("orders").receive(100, 10)
    assert [(delivery.message.id, delivery.message.ordering_key) for delivery in deliveries] == [(name, name) for name in LOOK_ALIKES]


def test_s097_names_of_queues_that_look_alike_stay_apart(broker: Broker) -> None:
    broker.adapter.ensure([Queue(name="Emails")])
    broker.publish("upper", queue="Emails")
    assert broker.consumer("emails").receive(10, 0) == []
    assert [delivery.message.id for delivery in broker.consumer("Emails").receive(10, 10)] == ["upper"]


# Declaring


def test_processes_that_declare_the_same_queues_at_once_all_succeed(database_url: str) -> None:
    with broker_at(database_url) as broker, ThreadPoolExecutor(4) as pool:
        start = threading.Barrier(4)

        def declare(number: int) -> None:
            start.wait()
            broker.adapter.ensure([Queue(name=f"queue-{round_}", groups=("a", "b")) for round_ in range(20)])

        for result in [pool.submit(declare, number) for number in range(4)]:
            result.result(60)
        assert len(broker.adapter.carriers()) == 41


@pytest.mark.parametrize(
    ("other", "argument"),
    [
        (Queue(name="emails", ordered=True), "ordered True"),
        (Queue(name="emails", lease=7.0), "lease 7.0"),
        (Queue(name="emails", dead_letter="graveyard"), "dead_letter 'graveyard'"),
    ],
    ids=["ordered", "lease", "dead_letter"],
)
def test_s016_a_queue_that_is_there_with_other_arguments_is_named_with_both(broker: Broker, other: Queue, argument: str) -> None:
    with pytest.raises(TopologyMismatch, match=f"queue 'emails': expected {argument}, but it is there with"):
        broker.adapter.ensure([Queue(name="new"), other])
    assert "new" not in broker.adapter.carriers()


# Settling


def test_s137_no_error_text_can_stop_a_status_from_being_written(broker: Broker) -> None:
    broker.publish("one", "two")
    consumer = broker.consumer()
    one, two = consumer.receive(2, 10)
    consumer.fail(one, "a\0b \ud800 \N{PILE OF POO}" + "ü" * 200_000, delay=0)
    consumer.dead_letter(two, "\0" * 10)
    rows = broker.rows()
    assert rows["one"].last_error.startswith("a\N{REPLACEMENT CHARACTER}b ? \N{PILE OF POO}ü")
    assert len(rows["one"].last_error.encode()) <= MAX_TEXT
    assert (rows["one"].status, rows["two"].status) == ("pending", "failed")


def test_s108_a_settle_with_a_token_of_the_past_changes_nothing(broker: Broker) -> None:
    broker.publish("one")
    old, new = broker.consumer(name="old"), broker.consumer(name="new")
    [stale] = old.receive(1, 10)
    assert broker.adapter.abandon("old") == 1
    [fresh] = new.receive(1, 10)
    before = broker.rows()["one"]
    for settle in (
        old.ack,
        old.release,
        lambda _: old.fail(stale, "late"),
        lambda _: old.dead_letter(stale, "late"),
        lambda _: old.extend([stale], 60),
    ):
        with pytest.raises(LeaseLost) as lost:
            settle([stale])
        assert lost.value.lost == (stale,)
    assert broker.rows()["one"] == before
    new.ack([fresh])
    assert broker.rows()["one"].status == "done"


def test_one_batch_may_hold_deliveries_of_many_takes_of_which_some_are_lost(broker: Broker) -> None:
    broker.publish(*(f"job-{number}" for number in range(9)))
    consumer = broker.consumer()
    deliveries = [delivery for _ in range(3) for delivery in consumer.receive(3, 10)]
    with broker.engine.begin() as connection:
        connection.execute(update(jobs).where(jobs.c.id.in_(["job-1", "job-4"])).values(token="another"))  # noqa: S106 - a receipt
    with pytest.raises(LeaseLost) as lost:
        consumer.ack(deliveries)
    assert {delivery.message.id for delivery in lost.value.lost} == {"job-1", "job-4"}
    assert {job_id for job_id, row in broker.rows().items() if row.status == "done"} == {f"job-{number}" for number in (0, 2, 3, 5, 6, 7, 8)}


def test_a_deferred_status_names_the_state_as_the_machine_does(broker: Broker) -> None:
    broker.publish("one", max_attempts=2)
    consumer = broker.consumer(name="worker-7")
    [delivery] = consumer.receive(1, 10)
    running = broker.rows()["one"]
    assert (running.status, running.worker, running.attempts) == ("running", "worker-7", 0)
    assert running.lease_until - running.taken_at == pytest.approx(30.0, abs=0.01)
    consumer.fail(delivery, "first", delay=3600)
    waiting = broker.rows()["one"]
    assert (waiting.status, waiting.attempts, waiting.last_error) == ("pending", 1, "first")
    assert (waiting.taken_at, waiting.lease_until, waiting.token, waiting.worker) == (None, None, None, None)
    assert waiting.available_at - waiting.due_at > 3590
    with broker.engine.begin() as connection:
        connection.execute(update(jobs).values(available_at=waiting.due_at))
    consumer.fail(consumer.receive(1, 10)[0], "second", delay=3600)
    failed = broker.rows()["one"]
    assert (failed.status, failed.attempts, failed.last_error) == ("failed", 2, "second")
    [letter] = broker.adapter.dead_letters("emails").list()
    assert broker.adapter.dead_letters("emails").put_back([letter.id], {letter.id: {"postroom-replays": 1}}) == [letter.id]
    again = broker.rows()["one"]
    assert (again.status, again.attempts, again.replays, again.last_error, again.finished_at) == ("pending", 0, 1, "second", None)
    [delivery] = consumer.receive(1, 10)
    assert delivery.message.headers == {"postroom-replays": 1}


@pytest.mark.parametrize("letter", ["", "-", "nonsense", "1e999-1", "nan-1", "1.5-" + "9" * 40, "1.5--3"])
def test_an_id_that_is_none_of_a_letter_finds_none(broker: Broker, letter: str) -> None:
    letters = broker.adapter.dead_letters("emails")
    assert letters.take([letter]) == []
    assert letters.put_back([letter]) == []


# Waiting


def test_a_publish_wakes_a_receive_of_the_same_process_long_before_its_next_poll(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.adapters.sql.consumer.FIRST_POLL", 600.0)
    monkeypatch.setattr("postroom.adapters.sql.consumer.LAST_POLL", 600.0)
    consumer = broker.consumer()
    with ThreadPoolExecutor() as pool:
        received = pool.submit(consumer.receive, 1, 600)
        broker.publish("one")
        assert [delivery.message.id for delivery in received.result(60)] == ["one"]


def test_an_ack_wakes_a_receive_that_waits_for_the_next_job_of_the_line(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.adapters.sql.consumer.FIRST_POLL", 600.0)
    monkeypatch.setattr("postroom.adapters.sql.consumer.LAST_POLL", 600.0)
    broker.publish("one", "two", queue="orders", key="k")
    consumer = broker.consumer("orders")
    first = consumer.receive(10, 60)
    with ThreadPoolExecutor() as pool:
        received = pool.submit(consumer.receive, 10, 600)
        consumer.ack(first)
        assert [delivery.message.id for delivery in received.result(60)] == ["two"]


def test_an_ack_wakes_a_receive_that_waits_for_room(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.adapters.sql.consumer.FIRST_POLL", 600.0)
    monkeypatch.setattr("postroom.adapters.sql.consumer.LAST_POLL", 600.0)
    broker.publish("one", "two")
    consumer = broker.consumer(prefetch=1)
    first = consumer.receive(10, 60)
    with ThreadPoolExecutor() as pool:
        received = pool.submit(consumer.receive, 10, 600)
        consumer.ack(first)
        assert [delivery.message.id for delivery in received.result(60)] == ["two"]


def test_another_process_wakes_a_receive_on_postgresql(postgresql_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.adapters.sql.consumer.FIRST_POLL", 600.0)
    monkeypatch.setattr("postroom.adapters.sql.consumer.LAST_POLL", 600.0)
    with broker_at(postgresql_database_url) as broker, broker_at(postgresql_database_url) as elsewhere, ThreadPoolExecutor() as pool:
        consumer = broker.consumer()
        received = pool.submit(consumer.receive, 1, 600)
        elsewhere.publish("one")
        assert [delivery.message.id for delivery in received.result(60)] == ["one"]


def test_closing_a_consumer_ends_a_receive_that_waits_in_another_thread(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.adapters.sql.consumer.LAST_POLL", 600.0)
    waits = threading.Event()
    consumer = broker.consumer()
    with ThreadPoolExecutor() as pool:
        received = pool.submit(lambda: (waits.set(), consumer.receive(1, 600)))
        waits.wait(60)
        consumer.close()
        with pytest.raises(Closed):
            received.result(60)


# Engines


def test_an_engine_of_the_callers_own_stays_open(broker: Broker) -> None:
    adapter = SqlAdapter(broker.engine)
    adapter.publish([_message("one")])
    adapter.close()
    with pytest.raises(Closed):
        adapter.publish([_message("two")])
    assert list(broker.rows()) == ["one"]


def test_a_database_that_postroom_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="sqlite, postgresql, mysql, mariadb, not in oracle"):
        dialect_of(create_mock_engine("oracle+oracledb://", executor=None))


def test_a_user_without_the_right_to_write_is_told_so(postgresql_database_url: str) -> None:
    with broker_at(postgresql_database_url) as broker:
        with broker.engine.begin() as connection:
            connection.execute(text("DROP ROLE IF EXISTS reader"))
            connection.execute(text("CREATE ROLE reader LOGIN PASSWORD 'reader'"))
            connection.execute(text("GRANT USAGE ON SCHEMA public TO reader"))
            connection.execute(text("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader"))
        url = broker.engine.url.set(username="reader", password="reader").render_as_string(hide_password=False)  # noqa: S106 - for the next three lines
        with closing(SqlAdapter(url)) as adapter, pytest.raises(AccessDenied, match="permission denied for table postroom_jobs"):
            adapter.publish([_message("one")])
        with broker.engine.begin() as connection:
            connection.execute(text("DROP OWNED BY reader"))
            connection.execute(text("DROP ROLE reader"))


@pytest.mark.parametrize(("prefetch", "name"), [(0, "worker"), (1, ""), (1, "w" * 201)])
def test_a_subscription_that_can_not_work_is_refused(broker: Broker, prefetch: int, name: str) -> None:
    with pytest.raises(ConfigurationError):
        broker.consumer(prefetch=prefetch, name=name)
