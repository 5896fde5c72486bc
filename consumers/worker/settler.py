"""Tells the backend what became of its deliveries: acks in ranges, the rest one by one, all from one thread."""

from __future__ import annotations

import heapq
import itertools
import logging
import random
import time
from collections import deque
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from postroom.adapters.errors import LeaseLost, Unavailable
from postroom.adapters.text import bounded
from postroom.outbox.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroom.adapters.seam import Consumer

    from .held import Held
    from .work import Receipt

__all__ = ["Settler"]

_log = logging.getLogger("postroom.worker")

BACKOFF = Backoff(first=0.2, cap=30.0)
"""Between two tries to tell the backend something that it could not take."""

MAX_REASON = 2000
"""The most bytes of a dead letter's reason: it travels as a header, and headers have limits."""

POLL = 0.5


@dataclass(order=True, slots=True)
class _Task:
    """Something to tell the backend, not before `due`."""

    due: float
    number: int
    receipts: Sequence[Receipt] = field(compare=False)
    act: Callable[[], None] = field(compare=False)
    what: str = field(compare=False)
    failures: int = field(compare=False, default=0)


class Settler:
    """Any thread may hand in; what the backend can't take is tried again with backoff and never forgotten, so nothing is acked away.

    What is not settled when the process ends goes back to the queue when its consumer closes.
    """

    def __init__(self, consumer: Consumer, held: Held, *, native_delay: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._consumer = consumer
        self._held = held
        self._native_delay = native_delay
        self._clock = clock
        self._rng = random.Random()  # noqa: S311 - to spread retries
        self._inbox: SimpleQueue[_Task | Sequence[Receipt] | None] = SimpleQueue()
        self._acks: deque[Receipt] = deque()
        self._tasks: list[_Task] = []
        self._numbers = itertools.count()
        self._closing = False
        self.failing = False
        """Whether the backend could not take the newest settlement."""

    def ack(self, receipts: Sequence[Receipt]) -> None:
        """They are done with."""
        self._inbox.put(receipts)

    def release(self, receipts: Sequence[Receipt], delay: float = 0.0) -> None:
        """Hand them back un-run, not to be delivered for `delay` seconds: where the backend can't hold them back, this process does."""
        deliveries = [receipt.delivery for receipt in receipts]
        if self._native_delay:
            self._hand_in(receipts, lambda: self._consumer.release(deliveries, delay), "release")
        else:
            self._hand_in(receipts, lambda: self._consumer.release(deliveries), "release", delay)

    def fail(self, receipt: Receipt, error: str, delay: float) -> None:
        """Its attempt failed; the backend itself brings it back after `delay` seconds."""
        self._hand_in([receipt], lambda: self._consumer.fail(receipt.delivery, bounded(error, MAX_REASON), delay), "fail")

    def dead_letter(self, receipt: Receipt, reason: str, attempts: int | None = None) -> None:
        """Give it up, with its original bytes, after so many `attempts` by the ledger's count; None: the backend's own count."""
        delivery = receipt.delivery if attempts is None else replace(receipt.delivery, attempts=attempts - 1)
        self._hand_in([receipt], lambda: self._consumer.dead_letter(delivery, bounded(reason, MAX_REASON)), "dead-letter")

    def run(self) -> None:
        """Settle until closed. The thread of this object."""
        while not self._closing or self._pending:
            self._collect()
            self._settle_acks()
            self._do_tasks()

    def close(self) -> None:
        """Let `run` return once everything is told, tries that wait for their time included."""
        self._inbox.put(None)

    @property
    def _pending(self) -> bool:
        return bool(self._acks or self._tasks) or not self._inbox.empty()

    def _hand_in(self, receipts: Sequence[Receipt], act: Callable[[], None], what: str, delay: float = 0.0) -> None:
        if receipts:
            self._inbox.put(_Task(self._clock() + delay, next(self._numbers), receipts, act, what))

    def _collect(self) -> None:
        """Wait for something to do, then take all there is."""
        timeout = POLL if not self._tasks else max(0.0, min(POLL, self._tasks[0].due - self._clock()))
        try:
            item = self._inbox.get(timeout=timeout)
            while True:
                self._accept(item)
                item = self._inbox.get_nowait()
        except Empty:
            return

    def _accept(self, item: _Task | Sequence[Receipt] | None) -> None:
        if item is None:
            self._closing = True
        elif isinstance(item, _Task):
            heapq.heappush(self._tasks, item)
        else:
            self._acks.extend(item)

    def _settle_acks(self) -> None:
        if self._acks:
            receipts = list(self._acks)
            self._acks.clear()
            deliveries = [receipt.delivery for receipt in receipts]
            self._attempt(_Task(0.0, next(self._numbers), receipts, lambda: self._consumer.ack(deliveries), "ack"))

    def _do_tasks(self) -> None:
        now = self._clock()
        while self._tasks and self._tasks[0].due <= now:
            self._attempt(heapq.heappop(self._tasks))

    def _attempt(self, task: _Task) -> None:
        try:
            task.act()
        except LeaseLost as lost:
            _log.info("%s came too late: %s", task.what, lost)
        except Exception as error:  # noqa: BLE001 - whatever it is, the delivery is not settled and must not be forgotten
            self._postpone(task, error)
            return
        self.failing = False
        self._held.remove(task.receipts)

    def _postpone(self, task: _Task, error: Exception) -> None:
        """Try it again later; an outage holds up all tasks of that moment, each with a backoff of its own."""
        task.failures += 1
        task.due = self._clock() + BACKOFF.delay(task.failures, self._rng)
        heapq.heappush(self._tasks, task)
        self.failing = True
        unforeseen = None if isinstance(error, Unavailable) else error
        _log.warning("can't %s %d deliveries yet (failure %d): %s", task.what, len(task.receipts), task.failures, error, exc_info=unforeseen)
