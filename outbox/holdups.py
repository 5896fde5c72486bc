"""Who goes before whom in an ordered queue on a broker, over retries, deferrals and dead letters.

A broker keeps the order of what is on it; but a retry is a new message there, behind all others, and a dead letter is none. So a job of an ordered
queue that was delivered and could not end *holds up* the later jobs of its ordering key, from then on until it is done or a person discards it:
those that are delivered meanwhile come back through the outbox, and those in the outbox stay there. Holdups of one key stand in the order in which
they came to be, which is that of their jobs; the first of them, and no other job of that key, may go.

The ledger writes them, in the transactions of its rounds; the relay reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import and_, bindparam, delete, select
from sqlalchemy.dialects import mysql, postgresql, sqlite

from .rows import wake
from .tables import holdups, outbox

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy import Connection

__all__ = ["FIRST_HOLDUP", "IS_HELD_UP", "Holdup", "hold_up", "let_go"]


class Holdup(NamedTuple):
    """A job that holds up the later ones of its ordering key. `queue` is the carrier it was delivered from."""

    queue: str
    ordering_key: str
    job: str


FIRST_HOLDUP = (
    select(holdups.c.job)
    .where(holdups.c.ordering_key == outbox.c.ordering_key, holdups.c.queue == outbox.c.queue)
    .order_by(holdups.c.seq)
    .limit(1)
    .correlate(outbox)
    .scalar_subquery()
)
"""Of a row of the outbox: the job that may go before all others of its ordering key, if there is one."""

IS_HELD_UP = and_(outbox.c.ordered, FIRST_HOLDUP.is_not(None), outbox.c.id != FIRST_HOLDUP)
"""Of a row of the outbox: whether another job goes first."""

_VALUES: dict[str, Any] = {name: bindparam(name) for name in Holdup._fields}
_INSERT = {
    "postgresql": postgresql.insert(holdups).values(_VALUES).on_conflict_do_nothing(),
    "sqlite": sqlite.insert(holdups).values(_VALUES).on_conflict_do_nothing(),
    "mysql": mysql.insert(holdups).values(_VALUES).on_duplicate_key_update(seq=holdups.c.seq),
}
_DELETE = delete(holdups).where(
    holdups.c.ordering_key == bindparam("of_key"), holdups.c.queue == bindparam("of_queue"), holdups.c.job == bindparam("of_job")
)


def hold_up(connection: Connection, jobs: Collection[Holdup]) -> None:
    """Let these hold up what is behind them, in their order, once the transaction commits. One that does so already keeps its place."""
    if jobs:
        statement = _INSERT.get(connection.dialect.name, _INSERT["mysql"])
        connection.execute(statement, [job._asdict() for job in jobs])


def let_go(connection: Connection, jobs: Collection[Holdup]) -> None:
    """These have ended: the next of their keys may go once the transaction commits. Those that hold up nobody are passed over."""
    gone = [connection.execute(_DELETE, {"of_key": key, "of_queue": queue, "of_job": job}).rowcount for queue, key, job in sorted(jobs)]
    if any(gone):
        wake(connection)
