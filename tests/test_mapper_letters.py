"""Mapped messages that fail: retries, dead letters and replays are of the same message, and mapped anew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from postroom.adapters.memory import Memory
from postroom.adapters.seam import Message
from postroom.consumers import Context, Fail, Jobs, MappedJob
from postroom.consumers.dead import Selection, as_seen, discarded, letters, places
from postroom.consumers.ledger import Ledger
from postroom.consumers.mapping import job_id
from postroom.consumers.replay import Fate, Replay, mark
from postroom.consumers.status import status_of
from postroom.outbox.tables import outbox
from support.foreign import Order, dead, draining_often, handled, order, replay, send
from support.inprocess import SOON, Office, office, working
from support.workers import eventually


@pytest.fixture
def here(here: Office) -> Iterator[Office]:
    with draining_often():
        yield here


def failing(here: Office, times: int, **options: Any) -> list[tuple[int, str, Any]]:
    """A handler that fails so often; what it saw: attempt, job id, payload."""
    seen: list[tuple[int, str, Any]] = []

    @here.jobs.handler("order", queue="q", backoff=SOON, **options)
    def handle(payload: Order, context: Context) -> None:
        seen.append((context.job.attempt, context.job.id, payload))
        if len(seen) <= times:
            raise RuntimeError("the printer is on fire")

    return seen


def test_a_retry_is_mapped_again_from_the_same_message(here: Office) -> None:
    met: list[Message] = []

    def mapper(message: Message) -> MappedJob | None:
        met.append(message)
        return order(message)

    here.jobs.mapper(queue="q")(mapper)
    seen = failing(here, times=2, max_attempts=5)
    send(here, {"order": 4711, "at": "12:00"}, ordering_key="customer-7")
    assert here.drain().counts["done"] == 1
    assert seen == [(number, "theirs-1", Order(4711)) for number in (1, 2, 3)]
    assert [(message.id, message.body, dict(message.headers), message.ordering_key) for message in met] == [
        ("theirs-1", b'{"order": 4711, "at": "12:00"}', {"producer": "shop", "raw": b"\xff"}, "customer-7")
    ] * 3
    assert here.entry("order-4711").status == "done"


def test_the_dead_letter_after_the_last_attempt_has_the_original_bytes_and_headers(here: Office) -> None:
    here.jobs.mapper(queue="q")(order)
    failing(here, times=9, max_attempts=3)
    send(here, {"order": 4711, "at": "12:00"})
    here.drain()
    [letter] = dead(here)
    assert letter.message.body == b'{"order": 4711, "at": "12:00"}'
    assert letter.message.headers.items() >= {"producer": "shop", "raw": b"\xff"}.items()
    assert letter.error == "given up after 3 attempts: RuntimeError: the printer is on fire"
    assert letter.envelope is not None
    assert (letter.envelope.type, letter.envelope.key, letter.envelope.id) == ("order", "order-4711", "theirs-1")
    assert letter.digest == here.entry("order-4711").digest


@pytest.mark.parametrize("attempts", [1, 3], ids=["first delivery", "after retries"])
def test_a_replayed_letter_is_the_same_job_with_a_clean_budget(here: Office, attempts: int) -> None:
    here.jobs.mapper(queue="q")(order)
    seen = failing(here, times=attempts, max_attempts=attempts)
    send(here, {"order": 4711})
    here.drain()
    assert replay(here) == {Fate.REPLAYED: 1}
    assert here.drain().counts == {"done": 1}
    assert [number for number, _, _ in seen] == [*range(1, attempts + 1), 1]
    entry = here.entry("order-4711")
    assert (entry.status, entry.replays, entry.job_id, dead(here)) == ("done", 1, "theirs-1", [])


def test_a_letter_that_was_never_mapped_can_be_replayed_once_the_mapper_is_mended(here: Office) -> None:
    broken = [True]
    seen = handled(here, lambda message: json.loads("") if broken[0] else order(message))
    send(here, {"order": 1})
    here.drain()
    broken.clear()
    broken.append(False)
    assert replay(here) == {Fate.REPLAYED: 1}
    assert here.drain().counts == {"done": 1}
    assert [payload for payload, _ in seen] == [Order(1)]


def test_a_mapper_that_was_mended_makes_another_payload_of_the_same_job(here: Office) -> None:
    names = ["id", "order_id"]
    here.jobs.mapper(queue="q")(lambda message: MappedJob(type="order", key="k", payload={names[0]: json.loads(message.body)["order"]}))
    seen = failing(here, times=0, max_attempts=2)
    send(here, {"order": 1})
    here.drain()
    assert "the payload does not fit Order" in dead(here)[0].error
    names.pop(0)
    assert replay(here) == {Fate.REPLAYED: 1}
    assert here.drain().counts == {"done": 1}
    assert [payload for _, _, payload in seen] == [Order(1)]


def test_a_message_that_its_mapper_passes_over_once_it_was_a_job_is_a_dead_letter(tmp_path: Path) -> None:
    with office(f"sqlite:///{tmp_path}/postroom.db", Memory(native_delay=False)) as here:
        answers = [MappedJob(type="order", key="k", payload={"order_id": 1}), None]
        here.jobs.mapper(queue="q")(lambda _: answers.pop(0))
        failing(here, times=9, max_attempts=3)
        send(here, {})
        here.drain()
        assert "it is no job any more, says the mapper, and it was one" in dead(here)[0].error
        assert (here.entry("k").status, here.entry("k").attempts) == ("failed", 2)


def test_a_job_whose_mapper_has_gone_fails_for_good_and_comes_back_with_it(tmp_path: Path) -> None:
    with office(f"sqlite:///{tmp_path}/postroom.db", Memory(native_delay=False)) as here:
        here.jobs.mapper(queue="q")(order)
        failing(here, times=9, max_attempts=2)
        send(here, {"order": 1})
        here.drain()
        assert replay(here) == {Fate.REPLAYED: 1}
        without = Jobs()
        without.handler("order", queue="q")(lambda _: None)
        replace(here, jobs=without).drain()
        assert "queue 'q' has no mapper here (any more)" in dead(here)[0].error
        assert here.entry("order-1").status == "failed"


def test_a_copy_in_the_outbox_has_the_envelope_and_all_of_the_original(tmp_path: Path) -> None:
    with office(f"sqlite:///{tmp_path}/postroom.db", Memory(native_delay=False)) as here:
        here.jobs.mapper(queue="q")(order)
        failing(here, times=1, max_attempts=2)
        long = "theirs-" * 10
        send(here, {"order": 1}, id_=long, ordering_key="customer-7", properties={"content_type": "application/json", "timestamp": 1_700_000_000})
        here.drain()
        with here.engine.connect() as connection:
            row = connection.execute(select(outbox)).one()
        assert (row.id, row.body, row.key, row.ordering_key) == (job_id(long), b'{"order": 1}', "order-1", "customer-7")
        assert here.entry("order-1").enqueued_at == 1_700_000_000
        assert row.enqueued_at == 1_700_000_000


def test_final_failures_of_mapped_jobs_are_found_by_type_and_key(here: Office) -> None:
    here.jobs.mapper(queue="q")(order)

    @here.jobs.handler("order", queue="q")
    def handle(_: Order) -> None:
        raise Fail("no such customer")

    send(here, {"order": 1})
    send(here, {"order": 2}, id_="theirs-2")
    here.drain()
    chosen = Selection(names=frozenset({"order-2"}), types=frozenset({"order"}))
    assert [letter.message.id for _, letter in letters(places(here.engine, here.adapter, ["q"]), chosen)] == ["theirs-2"]
    [status] = status_of(here.engine, "order-2")
    assert (status.status, status.last_error) == ("failed", "no such customer")


def test_of_several_replayed_messages_one_goes_first_and_is_watched(here: Office) -> None:
    broken = [True]
    here.jobs.mapper(queue="q")(order)

    @here.jobs.handler("order", queue="q")
    def handle(_: Order) -> None:
        if broken:
            raise Fail("no such customer")

    for number in (1, 2):
        send(here, {"order": number}, id_=f"theirs-{number}")
    here.drain()
    broken.clear()
    with working(here.worker()):
        ledger = Ledger(here.engine, worker="an operator", lease=30.0, native_delay=here.adapter.capabilities.native_delay)
        meant = mark(here.engine, letters(places(here.engine, here.adapter, ["q"]), Selection()))
        assert Replay(here.engine, ledger).run(meant, progress=lambda _: None, canary=60.0) == {Fate.REPLAYED: 2}
        eventually(lambda: {entry.status for entry in here.entries()} == {"done"})


def test_a_discarded_message_leaves_its_key_free(here: Office) -> None:
    here.jobs.mapper(queue="q")(order)
    failing(here, times=1, max_attempts=1)
    send(here, {"order": 1})
    here.drain()
    found = letters(places(here.engine, here.adapter, ["q"]), Selection())
    assert [letter.id for letter in discarded(here.engine, as_seen(here.engine, found), "a test")]
    [status] = status_of(here.engine, "order-1")
    assert (status.last_error or "").startswith("discarded: a test")
    send(here, {"order": 1}, id_="theirs-2")
    assert here.drain().counts == {"done": 1}
