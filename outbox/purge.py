"""Sent rows are history: kept for a while so that `postroom status` can tell it, then removed in small batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Double, Integer, bindparam, delete, select

from postroom.adapters.sql.transaction import transact
from postroom.adapters.sql.types import constant, now

from .tables import outbox

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

__all__ = ["purge"]

_ENDED = outbox.c.status.in_([constant("sent"), constant("dropped")])
_OLD = (
    select(outbox.c.seq)
    .where(_ENDED, outbox.c.sent_at < now() - bindparam("older_than", type_=Double))
    .order_by(outbox.c.sent_at)
    .limit(bindparam("limit", type_=Integer))
    .with_for_update(skip_locked=True)  # another purger's batch is not waited for; SQLite has one writer anyway
)
_DELETE = delete(outbox).where(outbox.c.seq.in_(bindparam("seqs", expanding=True)), _ENDED)


def purge(engine: Engine, *, older_than: float, limit: int = 1000) -> int:
    """Remove up to `limit` rows that were sent (or discarded) more than `older_than` seconds ago, the oldest first, in one transaction.

    Returns how many; fewer than `limit` means that there are no more, or that others remove them at this moment. Any number of callers may do it
    at once, and beside relays. Pending and parked rows are never touched. Raises Unavailable or SchemaDrift.
    """

    def work(connection: Connection) -> int:
        seqs = connection.execute(_OLD, {"older_than": older_than, "limit": limit}).scalars().all()
        return connection.execute(_DELETE, {"seqs": seqs}).rowcount if seqs else 0

    return transact(engine, work)
