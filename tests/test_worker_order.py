"""The jobs of an ordering key, one by one: over retries, behind a dead letter, and with several workers."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from postroom.adapters.seam import Queue
from postroom.consumers import Context
from postroom.consumers.status import status_of
from postroom.outbox import Outbox
from support.brokers import NATIVE, ORDERED
from support.inprocess import SOON, Office, working
from support.workers import eventually

pytestmark = pytest.mark.parametrize("here", [*NATIVE, *ORDERED], indirect=True)


def ordered_jobs(here: Office, numbers: int, *ordering_keys: str) -> None:
    """Enqueue `numbers` jobs of each of these ordering keys, a0, a1 ..., in a transaction each."""
    queue = Outbox(queue=Queue(name=here.name, ordered=True))
    for number in range(numbers):
        with here.engine.begin() as connection:
            for key in ordering_keys:
                queue.enqueue(connection, "t", {}, key=f"{key}{number}", ordering_key=key)


def test_s056_the_jobs_of_an_ordering_key_are_done_in_order_over_retries_with_several_workers(here: Office) -> None:
    done: list[str] = []

    @here.jobs.handler("t", queue=Queue(name=here.name, ordered=True), backoff=SOON)
    def handle(payload: Any, context: Context) -> None:
        number = int(context.job.key[1:])
        if context.job.attempt <= number % 3:
            raise ValueError("the others of my key wait for me")
        done.append(context.job.key)

    ordered_jobs(here, 6, "a", "b", "c")
    with working(here.worker()), working(here.worker()):
        eventually(lambda: len(done) == 18)
    for key in "abc":
        assert [name for name in done if name.startswith(key)] == [f"{key}{number}" for number in range(6)]
    assert {entry.status for entry in here.entries()} == {"done"}


def test_a_drain_waits_for_retries_and_not_for_what_only_an_operator_can_set_free(here: Office) -> None:
    done: list[str] = []

    @here.jobs.handler("t", queue=Queue(name=here.name, ordered=True), max_attempts=2, backoff=SOON)
    def handle(payload: Any, context: Context) -> None:
        if context.job.key == "a0" or (context.job.key == "b0" and context.job.attempt == 1):
            raise ValueError("no such address")
        done.append(context.job.key)

    ordered_jobs(here, 3, "a", "b")
    report = here.drain()
    assert (done, report.counts["done"], report.failed) == (["b0", "b1", "b2"], 3, 1)
    assert (here.drain().counts["done"], here.entry("a0").status) == (0, "failed")


@pytest.mark.parametrize("way", ["replayed", "discarded"])
def test_a_dead_letter_of_an_ordered_queue_holds_its_ordering_key_until_a_person_has_decided(here: Office, way: str) -> None:
    done: list[str] = []
    mended = threading.Event()

    @here.jobs.handler("t", queue=Queue(name=here.name, ordered=True), max_attempts=1)
    def handle(payload: Any, context: Context) -> None:
        if context.job.key == "a0" and not mended.is_set():
            raise ValueError("no such address")
        done.append(context.job.key)

    ordered_jobs(here, 3, "a", "b")
    with working(here.worker()) as shift:
        eventually(lambda: shift.worker.counts["dead"] and len(done) == 3)
        eventually(here.letters)
        eventually(lambda: shift.worker.counts["deferred"] == 2 or here.adapter.capabilities.name in {"memory", "sql"})
        assert done == ["b0", "b1", "b2"]
        if shift.worker.counts["deferred"]:
            [second] = status_of(here.engine, "a1")
            assert (second.status, second.place, second.behind) == ("pending", "outbox", here.entry("a0").job_id)
        mended.set()
        if way == "replayed":
            here.dead_letter_office.replay()
        else:
            here.dead_letter_office.discard("a typo")
        eventually(lambda: "a2" in done)
    assert done[3:] == ["a0", "a1", "a2"][way == "discarded" :]
