"""What an operator sees of the outbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fakes import BUSY, REFUSED, Scripted
from sqlalchemy import Engine

from postroom.outbox.relay import Relay
from postroom.outbox.stats import Backlog, stats
from support.outboxes import enqueue, enqueue_ids, let_pass, new_row, outbox_at


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with outbox_at(database_url) as engine:
        yield engine


def test_s067_parked_rows_have_a_count_of_their_own_and_sent_ones_have_none(engine):
    enqueue_ids(engine, "refused", "busy", "sent")
    broker = Scripted()
    broker.always = {"refused": REFUSED, "busy": BUSY}
    Relay(engine, broker).run_once()
    enqueue(engine, new_row("later", delay=3600.0), new_row("other", queue="invoices"))
    let_pass(engine, 100.0)
    with engine.connect() as connection:
        backlog = stats(connection)
    assert list(backlog) == ["emails", "invoices"]
    emails = backlog["emails"]
    assert (emails.due, emails.delayed, emails.retrying, emails.parked) == (1, 1, 1, 1)
    assert 100.0 <= emails.lag < 160.0
    assert (backlog["invoices"].due, backlog["invoices"].parked) == (1, 0)


def test_a_queue_with_nothing_but_parked_rows_is_listed(engine):
    enqueue_ids(engine, "refused")
    broker = Scripted()
    broker.always["refused"] = REFUSED
    Relay(engine, broker).run_once()
    with engine.connect() as connection:
        assert stats(connection) == {"emails": Backlog(parked=1)}


def test_an_empty_outbox_has_no_backlog(engine):
    with engine.connect() as connection:
        assert stats(connection) == {}
