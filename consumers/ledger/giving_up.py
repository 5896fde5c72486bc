"""A person gives up a job that has not failed: its next message was discarded before a broker had it, or is lost, or is a letter still."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import and_, bindparam, literal, null, or_, select, update

from postroom.adapters.seam import retries_of
from postroom.adapters.sql.types import now
from postroom.adapters.text import bounded

from .entry import FREE
from .tables import ledger

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["give_up"]

_WAITS = or_(ledger.c.status == "pending", and_(ledger.c.status == "running", ledger.c.lease_until < now()))
_ITS = (ledger.c.job_id == bindparam("job"), ledger.c.replays == bindparam("of_replays"), ledger.c.copy == bindparam("of_copy"), _WAITS)
_FIND = select(ledger.c.id, ledger.c.queue).where(*_ITS).order_by(ledger.c.id).with_for_update()
_END = (
    update(ledger)
    .where(ledger.c.id.in_(bindparam("ids", expanding=True)), _WAITS)
    .values(
        status=literal("failed"),
        digest=literal(FREE),
        last_error=bindparam("note"),
        finished_at=now(),
        taken_at=null(),
        lease_until=null(),
        worker=null(),
        retry_at=null(),
    )
)


def give_up(connection: Connection, *, job: str, queue: str, stamp: tuple[int, int], note: str) -> int:
    """End `job` as discarded where nothing but the message `stamp` (replay and copy), sent to `queue`, was to come of it; return for how many groups.

    What runs under a lease is left alone: it ends by itself. Its key is free then, and should the message come all the same, it is acked.
    """
    replays, copy = stamp
    found = connection.execute(_FIND, {"job": job, "of_replays": replays, "of_copy": copy}).all()
    ids = [row_id for row_id, carrier in found if queue in {carrier, retries_of(carrier)} or carrier.startswith(f"{queue}.")]
    return connection.execute(_END, {"ids": ids, "note": bounded(note)}).rowcount if ids else 0
