"""A worker in this process: from its start to its orderly end."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from postroom.adapters.errors import PostroomError
from postroom.adapters.sql import schema
from postroom.consumers.ledger.tables import ledger
from postroom.outbox import tables as outbox

from .checks import beat_of, check, chosen_queues, prepare_group
from .lanes import spare_lanes
from .life import Life
from .marks import Marks
from .names import new_name
from .parts import Plan, build
from .quiet import Quiet
from .report import Report
from .settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from postroom.adapters.seam import Adapter
    from postroom.consumers.jobs import Jobs

    from .parts import Parts
    from .stop import Stop

__all__ = ["Worker"]

GLANCE = 0.2
"""How often (seconds) to look whether all is quiet, or a part is broken."""


class Worker:
    """Runs the handlers of `jobs` in this process. One `run` per object.

    `engine` is the database of the ledger and of `context.session`: it needs room for `concurrency` + 4 connections. `name` names this run, and
    no other ever. `marks` is the page that a supervisor reads after this process's death. `clock` measures intervals on this host.
    Raises ConfigurationError when the settings don't fit the handlers or their queues.
    """

    def __init__(
        self,
        jobs: Jobs,
        engine: Engine,
        adapter: Adapter,
        settings: WorkerSettings | None = None,
        *,
        name: str | None = None,
        marks: Marks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = settings or WorkerSettings()
        check(jobs, settings)
        self._plan = Plan(
            jobs=jobs,
            engine=engine,
            adapter=adapter,
            settings=settings,
            name=name or new_name(),
            marks=marks or Marks.in_memory(lanes=spare_lanes(settings.concurrency), places=settings.look_ahead),
            beat=beat_of(jobs, settings),
            clock=clock,
        )
        self._parts: Parts | None = None

    def run(self, stop: Stop) -> Report:
        """Work until `stop` is asked, or with `drain` until all is quiet; then end in good order and say how it went.

        Blocks. Declares the queues first. At the end it receives no more, hands back what has not run, lets handlers go on for `grace` seconds
        (not at all once `stop` hurries), fails the attempts that are left, stores and settles: that takes some seconds at most.
        Raises Unavailable or ConfigurationError when it can't start, PostroomError when a part of it broke down, MissingExtra when an async
        handler asked for a session and the database's async driver is not installed: that attempt is handed back, too.
        """
        plan = self._plan
        schema.require(plan.engine, (ledger, *outbox.TABLES))
        plan.adapter.ensure(chosen_queues(plan.jobs, plan.settings))
        prepare_group(plan.jobs, plan.settings, plan.adapter)
        quiet = Quiet.of(plan.jobs, plan.engine, plan.adapter, plan.settings)
        failed_before = quiet.failed() if plan.settings.drain else 0
        self._parts = build(plan)
        life = Life(plan, self._parts)
        life.start()
        try:
            self._wait(stop, life, quiet)
        finally:
            hanging = life.end(stop)
        if missing := self._parts.desk.attempts.missing:
            raise missing
        if life.broken.is_set():
            raise PostroomError("a part of the worker broke down; the log says which and why")
        failed = quiet.failed() - failed_before if plan.settings.drain else 0
        return Report(failed=max(0, failed), counts=self.counts, hanging=hanging)

    @property
    def counts(self) -> Counter[str]:
        """How many deliveries ended in which way so far: done, failed, dead, duplicates, deferred, released, lost, passed."""
        return self._parts.desk.pipeline.counts if self._parts else Counter()

    @property
    def halted(self) -> bool:
        """Whether it starts no more handlers."""
        return self._parts is not None and self._parts.desk.halted.is_set()

    def ready(self) -> bool:
        """Whether it is subscribed to all of its queues, has polled them lately, and can settle."""
        return self._plan.marks.ready(self._plan.clock())

    def _wait(self, stop: Stop, life: Life, quiet: Quiet) -> None:
        """Until something ends it."""
        parts = self._parts
        while parts and not (stop.asked.wait(GLANCE) or life.broken.is_set() or parts.crew.stuck.is_set() or parts.desk.attempts.missing):
            if self._plan.settings.drain and quiet.look():
                return
