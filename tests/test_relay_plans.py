"""The relay's statements use its indexes, on a long line and whatever the statistics say."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from fakes import BUSY, Scripted
from sqlalchemy import Engine, insert, update

from postroom.outbox.options import RelayOptions
from postroom.outbox.relay import Relay
from postroom.outbox.tables import lanes, relays
from support.outboxes import enqueue_ids, fill, outbox_at
from support.plans import analyze, plans_of

_READS_ALL_ROWS = re.compile(r"Seq Scan on postroom_outbox|SCAN postroom_outbox(?! USING)|filesort|TEMP B-TREE|\bSort\b|JIT")


@pytest.fixture(params=["fresh statistics", "statistics of an empty table", "no statistics"])
def engine(database_url: str, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """A long line of rows that wait behind rows that were sent."""
    with outbox_at(database_url) as engine:
        if request.param == "statistics of an empty table":
            analyze(engine, "postroom_outbox")
        fill(engine, (f"sent-{number}" for number in range(2000)), status="sent")
        fill(engine, (f"due-{number}" for number in range(2000)))
        if request.param == "fresh statistics":
            analyze(engine, "postroom_outbox")
        yield engine


def plans_of_a_round(engine: Engine, relay: Relay) -> list[str]:
    """The plans of the statements of one round that read or change rows of the outbox."""
    with plans_of(engine, r"(FROM|UPDATE) postroom_outbox") as plans:
        assert relay.run_once().sent
    return plans


def test_s082_reads_and_marks_go_through_the_indexes(engine):
    broker = Scripted()
    broker.always["due-0"] = BUSY
    again, fresh, *marks = plans_of_a_round(engine, Relay(engine, broker, options=RelayOptions(batch=100)))
    assert len(marks) == 2
    assert not any("postroom_outbox_due" in mark for mark in marks), marks
    for plan in (again, fresh):
        assert "postroom_outbox_due" in plan, plan
        assert "postroom_outbox_held" in plan, plan
    for plan in (again, fresh, *marks):
        assert not _READS_ALL_ROWS.search(plan), plan


def test_s082_a_relay_with_half_of_the_lanes_reads_through_the_index_too(engine):
    relay = Relay(engine, Scripted(), options=RelayOptions(batch=100))
    relay.run_once()
    with engine.begin() as connection:
        connection.execute(insert(relays).values(id="rival", until=1e12))
        connection.execute(update(lanes).where(lanes.c.lane < 32).values(relay="rival", until=1e12))
    again, fresh, mark = plans_of_a_round(engine, relay)
    for plan in (again, fresh):
        assert "postroom_outbox_due" in plan, plan
    for plan in (again, fresh, mark):
        assert not _READS_ALL_ROWS.search(plan), plan


def test_s082_a_key_that_is_held_is_looked_up_and_not_searched(engine):
    enqueue_ids(engine, *(f"held-{number}" for number in range(3)), key="due-0")
    broker = Scripted(atomic=False)
    broker.always["due-0"] = BUSY
    relay = Relay(engine, broker)
    relay.run_once()
    for plan in plans_of_a_round(engine, relay):
        assert not _READS_ALL_ROWS.search(plan), plan
    assert not any(job_id.startswith("held") for job_id in broker.ids)
