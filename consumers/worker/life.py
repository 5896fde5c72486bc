"""The threads of a worker: started in the order in which they need each other, ended in the order in which jobs go through them."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from postroom.adapters.errors import PostroomError
from postroom.outbox.relay import Relay

from .names import relay_of
from .threads import Thread
from .watch import cut_short

if TYPE_CHECKING:
    from .parts import Parts, Plan
    from .stop import Stop

__all__ = ["Life"]

_log = logging.getLogger("postroom.worker")

GLANCE = 0.05
"""How often (seconds) to look whether the last handler has ended."""

FLUSH = 5.0
"""How long (seconds) it may take, after the last handler, to store what ended, and then again to settle it."""


class Life:
    """One run of a worker's parts. `broken` is set when one of them failed by a fault of ours."""

    def __init__(self, plan: Plan, parts: Parts) -> None:
        self._plan = plan
        self._parts = parts
        self._rng = random.Random()  # noqa: S311 - to spread retries
        self._relay = _relay(plan) if plan.settings.relay else None
        self.broken = parts.desk.broken
        self._settler, self._committer, self._renewer, self._watch, self._upkeep, self._receiver = (
            Thread(part, self.broken.set) for part in (parts.settler, parts.committer, parts.renewer, parts.watch, parts.upkeep, parts.receiver)
        )

    def start(self) -> None:
        """Start everything; what is received comes last."""
        for thread in (self._settler, self._committer, self._renewer, self._watch, self._upkeep):
            thread.start()
        self._parts.crew.start()
        self._receiver.start()
        if self._relay is not None:
            self._relay.start()

    def end(self, stop: Stop) -> int:
        """Begin and receive no more, hand back, wait for handlers, store, settle, close. Return how many handlers still hang."""
        parts = self._parts
        _log.info("stopping: nothing more is begun; handlers that still run: %d", len(parts.desk.running))
        parts.desk.halted.set()
        self._receiver.stop(FLUSH)
        parts.desk.pipeline.release(parts.buffer.close())
        for lane in parts.crew.lanes:
            lane.hand_back()
        parts.committer.wake()
        self._wait_for_handlers(stop)
        self._store()
        self._settler.stop(FLUSH)
        self._close()
        return parts.crew.hanging

    def _wait_for_handlers(self, stop: Stop) -> None:
        """Let running handlers end within the grace, unless it hurries; fail those that are left."""
        parts, clock, grace = self._parts, self._plan.clock, self._plan.settings.grace
        deadline = clock() + grace
        while parts.crew.busy and clock() < deadline and not stop.hurried.wait(GLANCE):
            pass
        when = "when it was told to hurry" if stop.hurried.is_set() else f"after {grace:g} s of grace"
        for work, _ in parts.desk.running.snapshot():
            cut_short(parts.desk, work, f"stopped: the worker ended {when}", rng=self._rng)

    def _store(self) -> None:
        if not self._committer.stop(FLUSH):
            self._parts.committer.give_up()
            self._committer.stop(FLUSH)

    def _close(self) -> None:
        for thread in (self._watch, self._renewer, self._upkeep):
            thread.stop(FLUSH)
        if self._relay is not None:
            self._relay.stop()
        try:
            self._parts.consumer.close()
        except PostroomError as error:
            _log.warning("the consumer could not be closed in good order: %s", error)
        self._parts.desk.attempts.close()


def _relay(plan: Plan) -> Relay:
    return Relay(plan.engine, plan.adapter, options=plan.settings.relay, name=relay_of(plan.name))
