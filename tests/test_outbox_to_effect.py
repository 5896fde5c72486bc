"""From the caller's transaction to the effect, over a broker that keeps every copy and no delay: one effect, at its time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from postroom.adapters.memory import Memory
from postroom.adapters.seam import Queue
from postroom.consumers import Context
from postroom.outbox import Relay
from postroom.outbox.tables import outbox
from support.inprocess import Office, effect, office
from support.ledgers import pass_time

HOUR = 3600.0


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Office]:
    with office(f"sqlite:///{tmp_path}/postroom.db", Memory(native_delay=False)) as place:

        @place.jobs.handler("t", queue="q")
        def handle(_payload: Any, context: Context) -> None:
            context.session.execute(effect(context.job.key))

        place.adapter.ensure(list(place.jobs.queues.values()))
        yield place


def relay(here: Office) -> int:
    return Relay(here.engine, here.adapter).drain().sent


@pytest.mark.parametrize("key", ["order-4711", None], ids=["domain key", "no key"])
def test_s102_s062_a_row_that_is_published_twice_has_one_effect_under_its_domain_key_or_the_id_it_always_had(here: Office, key: str | None) -> None:
    with here.engine.begin() as connection:
        job_id = here.outbox.enqueue(connection, "t", {}, key=key)
    assert relay(here) == 1
    with here.engine.begin() as connection:  # as a relay leaves it that dies between confirm and mark
        connection.execute(update(outbox).values(status="pending", sent_at=None))
    assert relay(here) == 1
    assert here.adapter.depth("q")["pending"] == 2
    counts = here.drain().counts
    assert (counts["done"], counts["duplicates"], counts["dead"]) == (1, 1, 0)
    assert here.effects() == [key or job_id]
    assert here.entry(key or job_id).status == "done"


def test_s118_a_job_that_is_delayed_for_hours_waits_in_the_database_and_comes_once(here: Office) -> None:
    here.enqueue("t", "order-4711", delay=2 * HOUR)
    for _ in range(3):
        assert relay(here) == 0
        assert here.adapter.depth("q") == {"pending": 0, "running": 0, "failed": 0}
        pass_time(here.engine, 0.6 * HOUR)
    pass_time(here.engine, 0.3 * HOUR)
    assert relay(here) == 1
    assert here.drain().counts == {"done": 1}
    assert here.effects() == ["order-4711"]


@pytest.mark.parametrize("commits", [True, False])
def test_s077_s078_a_relay_sends_what_was_committed_when_it_was_and_nothing_else_ever(postgresql_database_url: str, *, commits: bool) -> None:
    with office(postgresql_database_url, Memory(native_delay=False)) as here, here.engine.connect() as connection:
        here.adapter.ensure([Queue(name="q")])
        here.outbox.enqueue(connection, "t", {}, key="outside")
        with suppress(ZeroDivisionError), connection.begin_nested():
            here.outbox.enqueue(connection, "t", {}, key="of a savepoint that is rolled back")
            raise ZeroDivisionError
        assert (relay(here), here.adapter.depth("q")["pending"]) == (0, 0)
        connection.commit() if commits else connection.rollback()
        assert (relay(here), here.adapter.depth("q")["pending"]) == (commits, commits)
