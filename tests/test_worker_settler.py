"""Nothing is acked away: what the backend can't take is tried again, slower and slower, until it can."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from postroom.adapters.errors import LeaseLost, Unavailable
from postroom.adapters.seam import Delivery
from postroom.consumers.worker import settler as module
from postroom.consumers.worker.held import Held
from postroom.consumers.worker.settler import Settler
from postroom.consumers.worker.work import Receipt, Refused
from postroom.outbox.backoff import Backoff
from support.workers import eventually
from support.works import delivery_of, handler_of, work_of


class Scripted:
    """A consumer that does what it is told: each call takes the next of `troubles`, if there is one, and raises it."""

    def __init__(self, *troubles: Exception) -> None:
        self.troubles = list(troubles)
        self.calls: list[tuple[Any, ...]] = []
        self.tries = 0

    def _do(self, *call: Any) -> None:
        self.tries += 1
        if self.troubles:
            raise self.troubles.pop(0)
        self.calls.append(call)

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self._do("ack", *(delivery.message.id for delivery in deliveries))

    def release(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> None:
        self._do("release", delay, *(delivery.message.id for delivery in deliveries))

    def fail(self, delivery: Delivery, error: str, delay: float = 0.0) -> None:
        self._do("fail", delivery.message.id, error, delay)

    def dead_letter(self, delivery: Delivery, reason: str) -> None:
        self._do("dead_letter", delivery.message.id, reason)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF", Backoff(first=0.01, cap=0.02, jitter=0.0))


def receipts(count: int) -> list[Receipt]:
    return [work_of(str(number), handler_of()) for number in range(count)]


@contextmanager
def settling(consumer: Scripted, held: Sequence[Receipt], *, native_delay: bool = True) -> Iterator[Settler]:
    """A settler at work; at the end it has settled everything."""
    holding = Held()
    holding.add(held)
    settler = Settler(consumer, holding, native_delay=native_delay)  # type: ignore[arg-type]
    thread = threading.Thread(target=settler.run, daemon=True)
    thread.start()
    yield settler
    settler.close()
    thread.join(60)
    assert not thread.is_alive()
    assert len(holding) == 0


def test_what_is_done_is_acked_in_one_range() -> None:
    works, consumer = receipts(3), Scripted()
    settler = Settler(consumer, Held(), native_delay=True)  # type: ignore[arg-type]
    settler.ack(works[:1])
    settler.ack(works[1:])
    settler.close()
    settler.run()
    assert consumer.calls == [("ack", "id-of-0", "id-of-1", "id-of-2")]


@pytest.mark.parametrize(
    ("act", "call"),
    [
        (lambda settler, work: settler.fail(work, "no\x00pe", 3.0), ("fail", "id-of-0", "no\N{REPLACEMENT CHARACTER}pe", 3.0)),
        (lambda settler, work: settler.dead_letter(work, "why"), ("dead_letter", "id-of-0", "why")),
        (lambda settler, work: settler.release([work], 2.0), ("release", 2.0, "id-of-0")),
        (lambda settler, work: settler.ack([work]), ("ack", "id-of-0")),
    ],
)
def test_s124_a_backend_that_is_away_is_asked_again_with_a_pause_and_the_trouble_shows(act: Callable[..., None], call: tuple[Any, ...]) -> None:
    [work] = receipts(1)
    consumer = Scripted(Unavailable("gone"), Unavailable("gone"), ValueError("odd"))
    with settling(consumer, [work]) as settler:
        act(settler, work)
        eventually(lambda: settler.failing or consumer.calls)
        eventually(lambda: consumer.calls)
        eventually(lambda: not settler.failing)
    assert consumer.calls == [call]
    assert consumer.tries == 4


def test_s123_a_dead_letter_that_can_not_be_written_is_never_acked_and_is_written_once() -> None:
    refused = Refused(delivery=delivery_of("x"), reason="why")
    consumer = Scripted(*[Unavailable("the dead-letter queue is away")] * 5)
    with settling(consumer, [refused]) as settler:
        settler.dead_letter(refused, refused.reason)
        eventually(lambda: consumer.calls)
    assert consumer.calls == [("dead_letter", "id-of-x", "why")]


def test_s124_while_a_dead_letter_waits_others_are_settled_and_nothing_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF", Backoff(first=3600.0, cap=3600.0, jitter=0.0))
    works, consumer = receipts(2), Scripted(Unavailable("the dead-letter queue is away"))
    settler = Settler(consumer, Held(), native_delay=True)  # type: ignore[arg-type]
    threading.Thread(target=settler.run, daemon=True).start()
    settler.dead_letter(works[0], "why")
    eventually(lambda: settler.failing)
    settler.ack(works[1:])
    eventually(lambda: consumer.calls == [("ack", "id-of-1")])
    assert consumer.tries == 2


def test_s002_s003_an_ack_that_comes_too_late_is_told_once_and_neither_tried_again_nor_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    works = receipts(2)
    consumer = Scripted(LeaseLost("no longer held by this consumer: id-of-0", lost=[works[0].delivery]))
    with caplog.at_level("INFO", "postroom.worker"), settling(consumer, works) as settler:
        settler.ack(works)
    assert (consumer.calls, consumer.tries, settler.failing) == ([], 1, False)
    assert caplog.messages == ["ack came too late: no longer held by this consumer: id-of-0"]


def test_where_the_backend_can_not_hold_a_job_back_the_worker_does() -> None:
    now = [100.0]
    [work] = receipts(1)
    consumer = Scripted()
    settler = Settler(consumer, Held(), native_delay=False, clock=lambda: now[0])  # type: ignore[arg-type]
    thread = threading.Thread(target=settler.run, daemon=True)
    settler.release([work], 10.0)
    settler.ack(receipts(1))
    thread.start()
    eventually(lambda: consumer.calls)
    assert consumer.calls == [("ack", "id-of-0")]
    now[0] += 10.0
    eventually(lambda: consumer.calls[1:] == [("release", 0.0, "id-of-0")])
    settler.close()
    thread.join(60)


def test_the_reason_of_a_dead_letter_fits_into_a_header() -> None:
    works, consumer = receipts(1), Scripted()
    with settling(consumer, works) as settler:
        settler.dead_letter(works[0], "long " * 10_000)
    [(_, _, reason)] = consumer.calls
    assert len(reason.encode()) <= 2000
