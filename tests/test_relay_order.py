"""Who waits for whom in the outbox: order within a key, and no further."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fakes import BUSY, REFUSED, Scripted
from sqlalchemy import Engine

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


def test_a_retry_made_by_the_ledger_holds_the_rows_of_its_key_before_it_is_due(engine, broker):
    enqueue(engine, {**new_row("retry", "k", ordered=True, delay=HOUR), "holds": "k"})
    enqueue_ids(engine, "next", key="k", ordered=True)
    relay = Relay(engine, broker)
    assert relay.run_once().sent == 0
    let_pass(engine, HOUR + 1)
    run_until_quiet(engine, relay)
    assert broker.ids == ["retry", "next"]


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
