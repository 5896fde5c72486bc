"""Keeps leases alive, from a thread of its own: a handler that computes for minutes is not mistaken for one that vanished."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from postroom.adapters.errors import LeaseLost
from postroom.consumers.ledger.answers import Done, Lost

from .work import Work

if TYPE_CHECKING:
    from collections.abc import Collection

    from postroom.adapters.seam import Consumer
    from postroom.consumers.ledger import Ledger

    from .held import Held
    from .pipeline import Pipeline
    from .work import Running

__all__ = ["Renewer"]

_log = logging.getLogger("postroom.worker")

HURRIES = 4
"""After a beat that failed, the next comes so many times sooner."""


class Renewer:
    """Each `beat` seconds it renews what this process runs in the ledger, and holds on the backend, for `lease` seconds."""

    def __init__(self, ledger: Ledger, consumer: Consumer, held: Held, running: Running, pipeline: Pipeline, *, beat: float, lease: float) -> None:
        self._ledger = ledger
        self._consumer = consumer
        self._held = held
        self._running = running
        self._pipeline = pipeline
        self._beat = beat
        self._lease = lease
        self._closed = threading.Event()

    def run(self) -> None:
        """Renew until closed. The thread of this object."""
        pause = self._beat
        while not self._closed.wait(pause):
            pause = self._beat if self._renew() and self._extend() else self._beat / HURRIES

    def close(self) -> None:
        """Let `run` return."""
        self._closed.set()

    def _renew(self) -> bool:
        try:
            lost = self._ledger.renew()
        except Exception as error:  # noqa: BLE001 - the next beat may do; what is lost meanwhile is fenced
            _log.warning("the ledger's leases were not renewed: %s", error)
            return False
        if lost:
            self._fence(lost)
        return True

    def _extend(self) -> bool:
        receipts = self._held.snapshot()
        try:
            self._consumer.extend([receipt.delivery for receipt in receipts], self._lease)
        except LeaseLost as lost:
            _log.info("some deliveries are no longer ours: %s", lost)
        except Exception as error:  # noqa: BLE001 - the next beat may do
            _log.warning("the deliveries' leases were not extended: %s", error)
            return False
        return True

    def _fence(self, lost: Collection[tuple[int, int]]) -> None:
        """The attempts that others may run now: nothing that they still do is stored. A lane that has not started one yet will not."""
        for receipt in self._held.snapshot():
            if isinstance(receipt, Work) and receipt.started and (receipt.started.id, receipt.started.fence) in lost and not receipt.fenced:
                receipt.fenced = True
                if self._running.take(receipt):
                    receipt.overrule()
                    self._pipeline.settled([(receipt, Done(started=receipt.started), Lost())])
