"""Brings in what the lanes can use, and no more."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import TYPE_CHECKING

from postroom.adapters.errors import PostroomError
from postroom.outbox.backoff import Backoff

from .work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroom.adapters.seam import Consumer, Delivery

    from .buffer import Buffer
    from .held import Held
    from .marks import Marks
    from .pace import Pace
    from .pipeline import Pipeline

__all__ = ["Receiver"]

_log = logging.getLogger("postroom.worker")

OUTAGE = Backoff(first=0.2, cap=15.0)
POLL = 0.5
"""How long (seconds) one look into empty queues lasts: also how late a stop is noticed."""
NAP = 0.05
"""How long (seconds) to wait for a delivery to be settled before looking again."""


class Receiver:
    """Polls, decodes, and fills the buffer up to what the lanes can use; waits for the backend for as long as it is away.

    While `paused()`, nothing that would be received could be run here. It tells `marks` whether jobs of all queues come, and all else is `well()`.
    """

    def __init__(  # noqa: PLR0913 - what it connects
        self,
        consumer: Consumer,
        buffer: Buffer,
        held: Held,
        pace: Pace,
        pipeline: Pipeline,
        marks: Marks,
        *,
        lanes: int,
        most: int,
        paused: Callable[[], bool] = lambda: False,
        well: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._consumer = consumer
        self._buffer = buffer
        self._held = held
        self._pace = pace
        self._pipeline = pipeline
        self._marks = marks
        self._lanes = lanes
        self._most = most
        self._paused = paused
        self._well = well
        self._clock = clock
        self._rng = random.Random()  # noqa: S311 - to spread retries
        self._closed = threading.Event()
        self._failures = 0
        self._told = ""

    def run(self) -> None:
        """Receive until closed. The thread of this object."""
        while not self._closed.is_set():
            room = 0 if self._paused() else self._room()
            if room > 0:
                self._accept(self._receive(room))
            else:
                self._note()  # it is not deaf
                self._held.wait(NAP)

    def close(self) -> None:
        """Receive no more; `run` returns within half a second."""
        self._closed.set()

    def _room(self) -> int:
        """How many more to ask for: not a few at a time while there is work for all lanes."""
        capacity = min(self._most, self._lanes * self._pace.appetite)
        room = capacity - len(self._held)
        return room if room * 4 >= capacity else 0

    def _receive(self, room: int) -> Sequence[Delivery]:
        try:
            deliveries = self._consumer.receive(room, POLL)
        except PostroomError as error:
            self._failures += 1
            self._marks.troubled(self._clock())
            self._tell(str(error))
            self._closed.wait(OUTAGE.delay(self._failures, self._rng))
            return ()
        if self._failures:
            _log.info("receiving again after %d failures", self._failures)
        self._failures, self._told = 0, ""
        self._note()
        return deliveries

    def _tell(self, why: str) -> None:
        """Once, for as long as it lasts; and not what the backend tells by itself."""
        if why not in {self._told, *self._consumer.troubles}:
            _log.warning("can't receive, and goes on trying: %s", why)
        self._told = why

    def _note(self) -> None:
        """Ready is who reads all of its queues: who is busy with some hears nothing of one that is gone."""
        well = self._well() and not self._consumer.troubles
        (self._marks.polled if well else self._marks.troubled)(self._clock())

    def _accept(self, deliveries: Sequence[Delivery]) -> None:
        arrived = [self._pipeline.decode(delivery) for delivery in deliveries]
        self._held.add(arrived)
        self._pipeline.turned_away(receipt for receipt in arrived if not isinstance(receipt, Work))
        self._buffer.put([work for work in arrived if isinstance(work, Work)])
