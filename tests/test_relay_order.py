"""Who waits for whom in the outbox: order within a key, and no further."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import pytest
from fakes import BUSY, REFUSED, Scripted
from sqlalchemy import Connection, Engine

from postroom.outbox.holdups import Holdup, hold_up, let_go
from postroom.outbox.relay import Relay
from support.outboxes import enqueue, enqueue_ids, let_pass, new_row, outbox_at, run_until_quiet

HOUR = 3600.0


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with outbox_at(database_url) as engine:
        yield engine


@pytest.fixture
def broker() -> Scripted:
    return Scripted(atomic=False)


def test_a_delayed_row_joins_the_line_when_due_and_holds_nobody(engine, broker):
    enqueue(engine, new_row("later", "k", delay=HOUR, ordered=True), new_row("now", "k", ordered=True))
    relay = Relay(engine, broker)
    relay.run_once()
    assert broker.ids == ["now"]
    let_pass(engine, HOUR)
    relay.run_once()
    assert broker.ids == ["now", "later"]


def test_s069_a_row_that_waits_for_its_retry_holds_its_key_and_nobody_elses(engine, broker):
    enqueue_ids(engine, "k1", "k2", key="k")
    enqueue_ids(engine, "other")
    broker.answers["k1"] = [BUSY]
    relay = Relay(engine, broker)
    relay.run_once()
    assert broker.ids == ["other"]
    enqueue_ids(engine, "k3", key="k")
    relay.run_once()
    assert broker.ids == ["other"], "k2 and k3 wait for k1"
    let_pass(engine, HOUR)
    run_until_quiet(engine, relay)
    assert broker.ids == ["other", "k1", "k2", "k3"]


def test_s069_the_same_key_in_another_queue_is_not_held(engine, broker):
    enqueue(engine, new_row("a", "k", queue="emails"))
    broker.answers["a"] = [BUSY]
    relay = Relay(engine, broker)
    relay.run_once()
    enqueue(engine, new_row("b", "k", queue="invoices"))
    relay.run_once()
    assert broker.ids == ["b"]


@pytest.mark.parametrize(("ordered", "sent"), [(True, []), (False, ["k2"])], ids=["ordered", "not ordered"])
def test_a_parked_row_holds_its_key_only_in_a_queue_declared_ordered(engine, broker, ordered, sent):
    enqueue_ids(engine, "k1", "k2", key="k", ordered=ordered)
    broker.answers["k1"] = [REFUSED]
    run_until_quiet(engine, Relay(engine, broker))
    assert broker.ids == sent


def holdups(engine: Engine, change: Callable[[Connection, Collection[Holdup]], None], *jobs: str, queue: str = "emails") -> None:
    with engine.begin() as connection:
        change(connection, [Holdup(queue, "k", job) for job in jobs])


def test_a_retry_holds_up_the_rows_of_its_key_until_its_job_has_ended(engine, broker):
    enqueue_ids(engine, "next", key="k", ordered=True)
    enqueue(engine, new_row("retry", "k", ordered=True, delay=HOUR), new_row("other", "k2", ordered=True))
    holdups(engine, hold_up, "retry")
    relay = Relay(engine, broker)
    relay.run_once()
    assert broker.ids == ["other"]
    let_pass(engine, HOUR + 1)
    run_until_quiet(engine, relay)
    assert broker.ids == ["other", "retry"]
    holdups(engine, let_go, "retry")
    run_until_quiet(engine, relay)
    assert broker.ids == ["other", "retry", "next"]


def test_holdups_of_one_key_leave_one_by_one_in_their_order_and_before_all_others(engine, broker):
    enqueue_ids(engine, "third", "second", "first", key="k", ordered=True)
    holdups(engine, hold_up, "first", "second")
    holdups(engine, hold_up, "first")
    relay = Relay(engine, broker)
    for job in ("first", "second"):
        run_until_quiet(engine, relay)
        assert broker.ids[-1] == job
        holdups(engine, let_go, job)
    run_until_quiet(engine, relay)
    assert broker.ids == ["first", "second", "third"]


def test_a_retry_does_not_wait_for_a_later_row_that_the_broker_has_refused(engine, broker):
    enqueue_ids(engine, "refused", key="k", ordered=True)
    broker.answers["refused"] = [REFUSED]
    relay = Relay(engine, broker)
    relay.run_once()
    enqueue_ids(engine, "retry", key="k", ordered=True)
    holdups(engine, hold_up, "retry")
    run_until_quiet(engine, relay)
    assert broker.ids == ["retry"]


@pytest.mark.parametrize(("queue", "ordered"), [("elsewhere", True), ("emails", False)])
def test_a_holdup_is_nothing_to_another_queue_or_to_one_without_order(engine, broker, queue, ordered):
    enqueue_ids(engine, "next", key="k", ordered=ordered)
    holdups(engine, hold_up, "retry", queue=queue)
    run_until_quiet(engine, Relay(engine, broker))
    assert broker.ids == ["next"]


def test_of_two_rows_that_hold_one_key_the_first_may_go(engine):
    broker = Scripted(atomic=True)
    enqueue_ids(engine, "k1", "k2", key="k")
    broker.answers["k1"], broker.answers["k2"] = [BUSY], [BUSY]
    relay = Relay(engine, broker)
    relay.run_once()
    let_pass(engine, HOUR)
    relay.run_once()
    relay.run_once()
    assert broker.ids == ["k1", "k2"]
