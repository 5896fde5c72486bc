"""Whether all is quiet: nothing to do, nothing being done, nothing about to come."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import and_, bindparam, exists, func, or_, select

from postroom.adapters.errors import Unavailable
from postroom.adapters.seam import retries_of
from postroom.adapters.sql.engine import reading
from postroom.adapters.sql.transaction import transact
from postroom.adapters.sql.types import now
from postroom.consumers.ledger.tables import ledger
from postroom.outbox.holdups import IS_HELD_UP
from postroom.outbox.tables import outbox

from .checks import chosen_queues

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import BindParameter, Connection, Engine

    from postroom.adapters.seam import Adapter
    from postroom.consumers.jobs import Jobs

    from .settings import WorkerSettings

__all__ = ["IS_PARKED", "Quiet"]

_log = logging.getLogger("postroom.worker")

_NAMES: BindParameter[Sequence[str]] = bindparam("names", expanding=True)
# What is behind a job that holds it up is not waited for: if that job has not failed, it is seen by itself.
_WAITING = select(outbox.c.seq).where(outbox.c.status == "pending", outbox.c.available_at <= now(), outbox.c.queue.in_(_NAMES), ~IS_HELD_UP).limit(1)
_NEWEST = select(func.max(outbox.c.seq))
_ITS_MESSAGE = (outbox.c.id == ledger.c.job_id, outbox.c.queue.in_((ledger.c.queue, ledger.c.queue.concat(retries_of("")))))
IS_PARKED = exists().where(*_ITS_MESSAGE, outbox.c.status == "parked")
"""Of a row of the ledger: whether the broker refused the job's message for good, so that a person has to decide."""
_IS_BEHIND = exists().where(*_ITS_MESSAGE, outbox.c.status == "pending", IS_HELD_UP)
_UNENDED = (
    select(ledger.c.id)
    .where(ledger.c.status.in_(("pending", "running")), ledger.c.queue.in_(_NAMES), ~and_(ledger.c.status == "pending", or_(IS_PARKED, _IS_BEHIND)))
    .limit(1)
)


class _Look(NamedTuple):
    newest: int | None
    busy: bool


class Quiet:
    """Looks at the outbox first and at the queues then, the way that jobs go, so none slips by between the two.

    A retry that waits for its time is not quiet; a job that its sender has delayed is, and so is one that a dead letter of its ordering key holds
    up, or whose retry the broker refused for good. Quiet are two looks in a row without anything to do and without a new row in the outbox between
    them: a job that ended between two looks has left no other behind.
    """

    def __init__(self, engine: Engine, adapter: Adapter, *, carriers: Collection[str], queues: Collection[str]) -> None:
        self._engine = reading(engine)
        self._adapter = adapter
        self._carriers = sorted(carriers)
        self._names = sorted({*carriers, *queues})
        self._last = _Look(None, busy=True)

    @classmethod
    def of(cls, jobs: Jobs, engine: Engine, adapter: Adapter, settings: WorkerSettings) -> Quiet:
        """Look at what a worker with these settings works on."""
        queues = [queue.name for queue in chosen_queues(jobs, settings)]
        return cls(engine, adapter, carriers=jobs.carriers(settings.queues), queues=queues)

    def look(self) -> bool:
        """Look once; True when it was quiet this time and the last, with nothing new between. While it can't be seen it is not quiet."""
        last = self._last
        try:
            self._last = self._look()
        except Unavailable as error:
            _log.info("can't see whether all is quiet: %s", error)
            self._last = _Look(None, busy=True)
        return not (last.busy or self._last.busy) and last.newest == self._last.newest

    def failed(self) -> int:
        """How many jobs lie in the dead letters of these queues."""
        return sum(self._adapter.depth(carrier)["failed"] for carrier in self._carriers)

    def _look(self) -> _Look:
        newest, coming = transact(self._engine, self._look_at_the_database)
        depths = [self._adapter.depth(carrier) for carrier in self._carriers]
        return _Look(newest, busy=coming or any(depth["pending"] > depth.get("blocked", 0) or depth["running"] for depth in depths))

    def _look_at_the_database(self, connection: Connection) -> tuple[int | None, bool]:
        """Without native delay a retry waits in the outbox, where only the ledger tells it from a job that its sender has delayed."""
        statements = [_WAITING] if self._adapter.capabilities.native_delay else [_WAITING, _UNENDED]
        newest = connection.execute(_NEWEST).scalar()
        return newest, any(connection.execute(statement, {"names": self._names}).first() for statement in statements)
