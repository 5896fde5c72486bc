"""The relay's rounds on each database, with a broker that answers what the test says. Times pass when the test lets them."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fakes import BUSY, REFUSED, UNKNOWN, Gate, Scripted
from sqlalchemy import Engine, event, select, text, update

from postroom.adapters.errors import Unavailable
from postroom.adapters.seam import Outcome, Verdict
from postroom.adapters.sql.types import now
from postroom.outbox.backoff import Backoff
from postroom.outbox.options import RelayOptions
from postroom.outbox.relay import Relay
from postroom.outbox.rounds import Rounds
from postroom.outbox.rows import insert_rows
from postroom.outbox.tables import lanes, outbox
from support.databases import connected
from support.outboxes import enqueue, enqueue_ids, let_pass, new_row, outbox_at, rows_of, run_until_quiet, statuses

HOUR = 3600.0


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with outbox_at(database_url) as engine:
        yield engine


@pytest.fixture
def broker() -> Scripted:
    return Scripted(atomic=False)


def relay_of(engine: Engine, broker: Scripted, **options: object) -> Relay:
    return Relay(engine, broker, options=RelayOptions(**options), sleep=lambda _: None)


def test_rows_leave_oldest_due_first_and_are_sent_as_they_were_stored(engine, broker):
    enqueue_ids(engine, "a", "b", "c", body=b'{"order_id": 4711}')
    result = relay_of(engine, broker).run_once()
    assert (result.sent, result.more) == (3, False)
    assert broker.ids == ["a", "b", "c"]
    message = broker.published[0]
    assert (message.queue, message.body, message.ordering_key) == ("emails", b'{"order_id": 4711}', "a")
    assert message.headers["postroom-id"] == "a"
    row = rows_of(engine)["a"]
    assert (row.status, row.attempts, row.holds, row.retry_at) == ("sent", 0, None, None)
    assert row.sent_at >= row.enqueued_at


def test_nothing_due_is_a_normal_empty_round(engine, broker):
    assert not relay_of(engine, broker).run_once().worked
    assert broker.batches == []


def test_rows_of_every_size_travel_and_a_batch_never_holds_more_bytes_than_allowed(engine, broker):
    sizes = {"empty": 0, "small": 100, "at-the-limit": 16384, "large": 16385, "huge": 200_000, "last": 10}
    enqueue(engine, *(new_row(job_id, body=b"x" * size) for job_id, size in sizes.items()))
    relay = relay_of(engine, broker, batch_bytes=32_000)
    assert relay.drain().sent == len(sizes)
    assert {message.id: len(message.body) for message in broker.published} == sizes
    assert broker.batches == [["empty", "small", "at-the-limit"], ["large"], ["huge"], ["last"]]


def test_s058_a_row_that_commits_late_is_sent_though_a_later_one_is_gone(server_database_url, broker):
    with outbox_at(server_database_url) as engine, engine.connect() as late:
        relay = relay_of(engine, broker, batch=1)
        insert_rows(late, [new_row("first")])
        enqueue_ids(engine, "second")
        assert relay.run_once().sent == 1
        late.commit()
        assert relay.run_once().sent == 1
        assert broker.ids == ["second", "first"]


def test_s061_marked_sent_only_after_the_confirm(engine, broker):
    enqueue_ids(engine, "a", "b", "c")
    broker.answers["b"] = [OSError("cut"), ValueError("raises for this row")]
    broker.before = lambda _: seen.append(statuses(engine))
    seen: list[dict[str, str]] = []
    relay = relay_of(engine, broker)
    relay.run_once()
    assert set(statuses(engine).values()) == {"pending"}, "the batch got no answer"
    relay.run_once()
    assert seen[0] == dict.fromkeys("abc", "pending")


def test_s061_the_failing_row_is_charged_and_tried_in_the_future(engine, broker):
    enqueue_ids(engine, "a", "b", "c")
    broker.always["b"] = ValueError("raises for this row")
    relay = relay_of(engine, broker, backoff=Backoff(first=HOUR, cap=HOUR, jitter=0.0))
    relay.run_once()
    assert statuses(engine) == {"a": "sent", "b": "pending", "c": "sent"}
    row = rows_of(engine)["b"]
    assert (row.attempts, row.holds, row.last_error) == (1, "b", "ValueError: raises for this row")
    assert row.retry_at > rows_of(engine)["c"].sent_at + HOUR / 2
    assert not relay.run_once().worked, "its time has not come"
    let_pass(engine, HOUR)
    assert relay.run_once().held == 1


def test_s033_a_row_without_an_answer_stays_unsent_with_its_error_and_uncharged(engine, broker):
    enqueue_ids(engine, "a")
    broker.always["a"] = UNKNOWN
    relay = relay_of(engine, broker)
    result = relay.run_once()
    assert (result.unknown, result.outage) == (1, "connection lost")
    row = rows_of(engine)["a"]
    assert (row.status, row.attempts, row.retry_at, row.holds, row.last_error) == ("pending", 0, None, None, "connection lost")


def test_s039_a_row_without_an_answer_is_sent_again_with_the_same_id(engine, broker):
    enqueue_ids(engine, "a")
    broker.answers["a"] = [UNKNOWN]
    relay = relay_of(engine, broker)
    relay.run_once()
    relay.run_once()
    assert broker.batches == [["a"], ["a"]]
    assert statuses(engine) == {"a": "sent"}


@pytest.mark.parametrize("poison", [REFUSED, BUSY, RuntimeError("unencodable")])
def test_s065_a_full_batch_of_poison_does_not_block_the_rows_behind_it(engine, broker, poison):
    enqueue_ids(engine, *(f"row-{number:02}" for number in range(1, 11)))
    broker.always = {f"row-{number:02}": poison for number in range(1, 4)}
    relay = relay_of(engine, broker, batch=3, max_attempts=3)
    for _ in range(5):
        relay.run_once()
    assert broker.ids == [f"row-{number:02}" for number in range(4, 11)]
    run_until_quiet(engine, relay)
    rows = rows_of(engine)
    parked = [job_id for job_id, row in rows.items() if row.status == "parked"]
    assert parked == ["row-01", "row-02", "row-03"]
    assert all(rows[job_id].last_error for job_id in parked)


def test_s065_poison_whose_retry_is_due_never_takes_more_than_half_of_a_batch(engine, broker):
    enqueue_ids(engine, *(f"poison-{number}" for number in range(4)))
    broker.always = {f"poison-{number}": BUSY for number in range(4)}
    relay = relay_of(engine, broker, batch=4)
    relay.run_once()
    let_pass(engine, HOUR)
    enqueue_ids(engine, "a", "b")
    relay.run_once()
    assert broker.ids == ["a", "b"]
    assert len(broker.batches[-1]) <= 4


def test_a_row_is_parked_after_as_many_busy_answers_as_allowed(engine, broker):
    enqueue_ids(engine, "a")
    broker.always["a"] = BUSY
    relay = relay_of(engine, broker, max_attempts=4)
    run_until_quiet(engine, relay)
    row = rows_of(engine)["a"]
    assert (row.status, row.attempts, row.last_error, row.holds) == ("parked", 4, "queue is full", None)
    assert broker.batches == [["a"]] * 4


def test_s065_a_row_that_is_no_message_is_parked_and_blocks_nobody(engine, broker):
    enqueue_ids(engine, "a", "bad")
    enqueue_ids(engine, "behind", key="bad", ordered=True)
    enqueue_ids(engine, "c")
    with engine.begin() as connection:
        connection.execute(update(outbox).where(outbox.c.id == "bad").values(headers=b"\xc1 no headers", ordered=True))
    relay = relay_of(engine, broker)
    assert relay.run_once().parked == 1
    run_until_quiet(engine, relay)
    assert broker.ids == ["a", "c"]
    row = rows_of(engine)["bad"]
    assert (row.status, row.holds) == ("parked", "bad")
    assert "no message of Postroom's" in row.last_error


def test_s066_an_outage_uses_up_no_attempts_and_keeps_each_keys_order(engine, broker):
    enqueue_ids(engine, "a1", "a2", key="a")
    enqueue_ids(engine, "b1", "b2", key="b")
    broker.away = ConnectionRefusedError("broker down")
    relay = relay_of(engine, broker, max_attempts=5)
    for _ in range(50):
        assert relay.run_once().outage
    assert {row.attempts for row in rows_of(engine).values()} == {0}
    broker.away = None
    relay.drain()
    assert [job_id for job_id in broker.ids if job_id[0] == "a"] == ["a1", "a2"]
    assert [job_id for job_id in broker.ids if job_id[0] == "b"] == ["b1", "b2"]
    assert set(statuses(engine).values()) == {"sent"}


def test_a_relay_that_has_had_no_answer_for_a_lease_leaves_its_lanes_to_those_who_may_get_one(engine, broker):
    enqueue_ids(engine, "a")
    cut_off, passed = Scripted(), [0.0]
    cut_off.always["a"] = UNKNOWN
    near, far = (
        Rounds(engine, adapter, RelayOptions(lease=30.0), name=name, clock=lambda: passed[0], rng=random.Random(1))  # noqa: S311 - any will do
        for name, adapter in (("near", cut_off), ("far", broker))
    )
    assert near.round(lambda: True).outage
    passed[0] = 29.0
    assert near.round(lambda: True).outage
    assert not far.round(lambda: True).worked
    passed[0] = 31.0
    assert near.round(lambda: True).outage
    assert far.round(lambda: True).sent == 1


def test_s067_a_parked_row_is_not_sent_again_and_stays_with_its_reason(engine, broker):
    enqueue_ids(engine, "a")
    broker.answers["a"] = [Outcome(Verdict.REFUSED, "message too large\0\ud800")]
    relay = relay_of(engine, broker, retention=0.0)
    assert relay.run_once().parked == 1
    let_pass(engine, 1000 * HOUR)
    relay.run_once()
    row = rows_of(engine)["a"]
    assert row.status == "parked"
    assert row.last_error.startswith("message too large")
    assert broker.batches == [["a"]]


def test_s070_a_settle_under_a_lost_lease_changes_nothing_and_is_reported(engine, broker, caplog):
    enqueue_ids(engine, "a", "b", "c")
    broker.answers["b"], broker.answers["c"] = [BUSY], [REFUSED]
    broker.before = lambda _: take_all_lanes(engine)
    with caplog.at_level("WARNING", logger="postroom.outbox"):
        result = relay_of(engine, broker).run_once()
    assert (result.sent, result.held, result.parked, result.lost) == (0, 0, 0, 3)
    assert {(row.status, row.attempts, row.last_error) for row in rows_of(engine).values()} == {("pending", 0, None)}
    assert "lease lost: 3 answers not recorded" in caplog.text


def test_s070_a_lane_lost_and_won_back_meanwhile_is_fenced_too(engine, broker):
    """The rival is gone, and our own name stands in the lanes again: only the token tells."""
    relay = relay_of(engine, broker)
    enqueue_ids(engine, "a")

    def lose_and_win_back(_: object) -> None:
        with engine.begin() as connection:
            connection.execute(update(lanes).values(token=lanes.c.token + 2, until=1e12))

    broker.before = lose_and_win_back
    assert relay.run_once().lost == 1
    assert statuses(engine) == {"a": "pending"}


def take_all_lanes(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(update(lanes).values(relay="rival", token=lanes.c.token + 1, until=1e12))


def test_answers_are_not_forgotten_when_the_database_goes_away_before_they_are_recorded(engine, broker, monkeypatch):
    enqueue_ids(engine, "a")
    relay = relay_of(engine, broker)
    with monkeypatch.context() as patched:
        patched.setattr("postroom.outbox.rounds.settle", _raise_unavailable)
        with pytest.raises(Unavailable, match="database away"):
            relay.run_once()
    assert statuses(engine) == {"a": "pending"}
    assert relay.run_once().sent == 1
    assert broker.batches == [["a"]], "it was not published a second time"


def _raise_unavailable(*_: object) -> None:
    raise Unavailable("database away")


def test_s079_batches_are_bounded_and_progress_is_saved_after_each(engine, broker):
    enqueue_ids(engine, *(f"row-{number}" for number in range(25)))
    seen: list[int] = []
    broker.before = lambda _: seen.append(list(statuses(engine).values()).count("sent"))
    results = []
    relay_of(engine, broker, batch=10).drain(progress=results.append)
    assert [len(batch) for batch in broker.batches] == [10, 10, 5]
    assert seen == [0, 10, 20]
    assert [result.more for result in results[:2]] == [True, True]


def test_s079_no_more_rows_are_read_than_a_batch_holds(server_database_url, broker):
    with outbox_at(server_database_url) as engine:
        enqueue_ids(engine, *(f"busy-{number}" for number in range(20)))
        broker.always = {f"busy-{number}": BUSY for number in range(20)}
        relay = relay_of(engine, broker, batch=10)
        relay.drain()
        let_pass(engine, HOUR)  # now there are rows of both kinds: that may be tried again, and fresh ones
        enqueue_ids(engine, *(f"row-{number}" for number in range(25)))
        read: list[int] = []

        def count(_connection: object, cursor: Any, statement: str, *_: object) -> None:
            if statement.startswith("SELECT") and "postroom_outbox.headers" in statement:
                read.append(cursor.rowcount)

        event.listen(engine, "after_cursor_execute", count)
        relay.drain()
        assert max(read) == 10
        assert sum(read) < 2 * 45, "hardly any is read twice"


def test_s079_a_stop_is_honoured_between_batches(engine, broker):
    enqueue_ids(engine, *(f"row-{number}" for number in range(30)))
    stop = threading.Event()
    broker.before = lambda _: stop.set()
    assert relay_of(engine, broker, batch=10).drain(stop).sent == 10


def test_s082_no_database_transaction_is_open_while_the_broker_is_waited_for(engine, broker):
    enqueue_ids(engine, "a", "b")
    open_now: list[int] = []
    broker.before = lambda _: open_now.append(engine.pool.checkedout())
    relay_of(engine, broker).run_once()
    assert set(open_now) == {0}


def test_s082_postgresql_sees_no_transaction_of_the_relay_while_the_broker_is_waited_for(postgresql_database_url, broker):
    with outbox_at(postgresql_database_url) as engine, connected(postgresql_database_url) as observer:
        enqueue_ids(engine, "a", "b")
        states: list[str] = []
        query = text("SELECT state FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND state IS NOT NULL")
        broker.before = lambda _: states.extend(observer.execute(query).scalars())
        relay_of(engine, broker).run_once()
        assert set(states) == {"idle"}


def test_a_row_parked_by_an_operator_while_it_is_in_flight_is_left_alone(engine, broker):
    enqueue_ids(engine, "a", "b")

    def park(_: object) -> None:
        with engine.begin() as connection:
            connection.execute(update(outbox).where(outbox.c.id == "a").values(status="parked"))

    broker.before = park
    result = relay_of(engine, broker).run_once()
    assert (result.sent, result.lost) == (1, 1)
    assert statuses(engine) == {"a": "parked", "b": "sent"}


def test_drain_sends_what_becomes_free_and_ends_when_nothing_is_due(engine, broker):
    enqueue_ids(engine, *(f"k{number}" for number in range(5)), key="k")
    enqueue_ids(engine, "tomorrow", delay=24 * HOUR)
    total = relay_of(engine, broker, batch=2).drain()
    assert total.sent == 5
    assert broker.ids == [f"k{number}" for number in range(5)]


def test_drain_says_when_the_broker_gives_no_answer(engine, broker):
    enqueue_ids(engine, "a")
    broker.away = ConnectionRefusedError("connection refused")
    with pytest.raises(Unavailable, match="connection refused"):
        relay_of(engine, broker).drain()
    assert statuses(engine) == {"a": "pending"}


def test_drain_waits_for_the_lanes_that_a_dead_relay_still_holds(engine, broker):
    enqueue_ids(engine, "a")
    relay_of(engine, broker).run_once()
    enqueue_ids(engine, "b")
    take_all_lanes(engine)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        with engine.begin() as connection:
            connection.execute(update(lanes).values(until=0.0))

    assert Relay(engine, broker, sleep=sleep).drain().sent == 1
    assert pauses


def test_lanes_are_given_back_after_a_round_by_itself(engine, broker):
    relay_of(engine, broker).run_once()
    with engine.connect() as connection:
        assert set(connection.execute(select(lanes.c.relay)).scalars()) == {None}


def test_s073_two_relays_that_read_at_the_same_time_publish_no_row_twice(engine):
    enqueue_ids(engine, "a", "b", "c")
    slow, quick, gate = Scripted(), Scripted(), Gate()
    slow.before = gate.wait
    first = threading.Thread(target=relay_of(engine, slow).run_once)
    first.start()
    assert gate.entered.wait(60)
    assert relay_of(engine, quick).run_once().sent == 0
    gate.opened.set()
    first.join()
    assert sorted(slow.ids + quick.ids) == ["a", "b", "c"]


def test_backoff_between_busy_answers_grows_up_to_its_cap(engine, broker):
    enqueue_ids(engine, "a")
    broker.always["a"] = BUSY
    relay = relay_of(engine, broker, backoff=Backoff(first=10.0, cap=40.0, jitter=0.0))
    wait = select(outbox.c.retry_at - now())
    waits = []
    for _ in range(4):
        relay.run_once()
        with engine.connect() as connection:
            waits.append(connection.execute(wait).scalar())
        let_pass(engine, HOUR)
    assert [round(seconds, -1) for seconds in waits] == [10, 20, 40, 40]
