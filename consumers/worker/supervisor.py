"""The parent of the worker processes: replaces the dead, gives up a dead one's leases at once, passes signals on."""

from __future__ import annotations

import itertools
import logging
import tempfile
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from postroom.adapters.connect import connect
from postroom.adapters.errors import ConfigurationError
from postroom.adapters.sql import schema
from postroom.adapters.sql.engine import open_engine
from postroom.adapters.urls import PROCESS
from postroom.consumers.ledger import Ledger
from postroom.consumers.ledger.tables import ledger
from postroom.outbox import lanes
from postroom.outbox import tables as outbox

from .checks import check, chosen_queues, prepare_group
from .config import ChildConfig
from .family import Family
from .foreground import signals_to
from .lanes import spare_lanes
from .marks import Marks
from .names import new_name, relay_of
from .process import Child
from .quiet import Quiet
from .report import Report
from .settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.consumers.jobs import Jobs

__all__ = ["Supervisor"]

_log = logging.getLogger("postroom.supervisor")

GLANCE = 0.2
"""How often (seconds) to look for children to start or to kill, and whether all is quiet."""


class Supervisor:
    """Runs `processes` worker processes for the Jobs that `app` (`shop:jobs`) names. One `run` per object, in the main thread.

    `jobs` are that app's, loaded here too: to check, declare and count. Each child imports the app anew, from the same working directory.
    `{process}` in `broker` is the number of a child, the lowest that no other has.
    Raises ConfigurationError for settings that don't fit the handlers, and for a broker that other processes can't see.
    """

    def __init__(
        self,
        app: str,
        jobs: Jobs,
        *,
        database: str,
        broker: str,
        processes: int = 1,
        settings: WorkerSettings | None = None,
        log_level: int = logging.INFO,
    ) -> None:
        self._settings = settings or WorkerSettings()
        check(jobs, self._settings)
        if processes < 1:
            raise ConfigurationError(f"processes must be at least 1, not {processes}")
        self._adapter = connect(broker)
        capabilities = self._adapter.capabilities
        if not capabilities.shared:
            raise ConfigurationError(f"no other process can see the queues of {capabilities.name!r}: run a Worker in this one")
        if processes > 1 and capabilities.single:
            raise ConfigurationError(f"{capabilities.single}: names one process of {processes}; write {PROCESS} into it, for the number of each")
        self._engine = open_engine(database)
        self._ledger = Ledger(self._engine, worker=new_name(), lease=self._settings.lease, native_delay=capabilities.native_delay)
        self._jobs = jobs
        self._config = ChildConfig(app=app, database=database, broker=broker, name="", marks=-1, settings=self._settings, log_level=log_level)
        self._family = Family(processes, self._give_birth, grace=self._settings.grace)

    def run(self, *, connected: Callable[[], object] = lambda: None) -> Report:
        """Supervise until a signal stops it, or with `drain` until all is quiet, and all children have ended.

        Blocks. `connected` is called once, when the queues are there and the children are about to start. SIGTERM or SIGINT drains the children,
        a second one hurries them. Raises Unavailable or ConfigurationError when it can't start, or no child can.
        """
        schema.require(self._engine, (ledger, *outbox.TABLES))
        self._adapter.ensure(chosen_queues(self._jobs, self._settings))
        for line in prepare_group(self._jobs, self._settings, self._adapter):
            _log.warning("%s", line)
        quiet = Quiet.of(self._jobs, self._engine, self._adapter, self._settings)
        failed_before = quiet.failed() if self._settings.drain else 0
        connected()
        try:
            with signals_to(self._family.notice):
                number = self._supervise(quiet)
            failed = quiet.failed() - failed_before if self._settings.drain else 0
            return Report(failed=max(0, failed), signal=number)
        finally:
            self._adapter.close()
            self._engine.dispose()

    def ready(self) -> bool:
        """Whether every child is subscribed to all of its queues, has polled them lately, and can settle. Any thread may ask."""
        return self._family.complete and all(child.marks.ready(time.monotonic()) for child in self._family.children)

    def _supervise(self, quiet: Quiet) -> int | None:
        """Return the number of the signal that ended it, if one did."""
        family, number = self._family, None
        while family.children or not family.ending:
            if signalled := family.tend(GLANCE):
                number = number or signalled.number
                family.end()
            elif not family.ending and (family.fault or (self._settings.drain and family.worked and quiet.look())):
                family.end()
        family.bury()
        if family.fault:
            raise family.fault
        return number

    def _give_birth(self, ended: Callable[[Child], object]) -> Child:
        with tempfile.TemporaryFile() as page:  # it has no name, so nothing is left of it, whoever is killed
            marks = Marks.in_file(page.fileno(), lanes=spare_lanes(self._settings.concurrency), places=self._settings.look_ahead)
            taken = {child.number for child in self._family.children}
            number = next(number for number in itertools.count() if number not in taken)
            broker = self._config.broker.replace(PROCESS, str(number))
            settings = replace(self._settings, drain=False)
            config = replace(self._config, name=new_name(), number=number, broker=broker, marks=page.fileno(), settings=settings)
            return Child(config, marks, self._abandon, ended)

    def _abandon(self, name: str, marks: Marks) -> None:
        """Give up what a dead child held: first the ledger, so that what the queues deliver again finds its row free."""
        given_up = self._ledger.abandon(name, marks.read())
        handed_back = self._adapter.abandon(name)
        if self._settings.relay is not None:
            lanes.give_up(self._engine, relay_of(name))
        if str(given_up) or handed_back:
            _log.info("what %s left behind: deliveries handed back: %d; attempts: %s", name, handed_back, str(given_up) or "none")
