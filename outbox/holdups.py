"""Who goes before whom in an ordered queue on a broker, over retries, deferrals and dead letters.

A broker keeps the order of what is on it; but a retry is a new message there, behind all others, and a dead letter is none. So a job of an ordered
queue that was delivered and could not end *holds up* the later jobs of its ordering key, from then on until it is done or a person discards it:
those that are delivered meanwhile come back through the outbox, and those in the outbox stay there. Holdups of one key stand in the order in which
they came to be, which is that of their jobs; the first of them, and no other job of that key, may go.

The ledger writes them, in the transactions of its rounds; the relay reads them.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import and_, bindparam, delete, exists, null, or_, select, update
from sqlalchemy.dialects import mysql, postgresql, sqlite

from .rows import wake
from .tables import holdups, outbox

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sqlalchemy import Connection

__all__ = ["FIRST_HOLDUP", "IS_HELD_UP", "Holdup", "hold_up", "let_go", "revive"]


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

_PARKED = outbox.alias("parked")
_IS_BEHIND_PARKED = exists().where(
    _PARKED.c.holds == outbox.c.ordering_key,
    _PARKED.c.queue == outbox.c.queue,
    _PARKED.c.status == "parked",
    or_(outbox.c.holds.is_(None), _PARKED.c.available_at < outbox.c.available_at),
)
IS_HELD_UP = and_(
    outbox.c.ordered, or_(and_(FIRST_HOLDUP.is_not(None), outbox.c.id != FIRST_HOLDUP), and_(FIRST_HOLDUP.is_(None), _IS_BEHIND_PARKED))
)
"""Of a row of the outbox: whether another job goes first, or would if the broker had not refused it for good. See `due` for what a relay asks."""

_VALUES: dict[str, Any] = {name: bindparam(name) for name in (*Holdup._fields, "error")}
_ONE = ("ordering_key", "queue", "job")
_POSTGRESQL = postgresql.insert(holdups).values(_VALUES)
_SQLITE = sqlite.insert(holdups).values(_VALUES)
_MYSQL = mysql.insert(holdups).values(_VALUES)
_INSERT = {
    "postgresql": _POSTGRESQL.on_conflict_do_update(index_elements=_ONE, set_={"error": _POSTGRESQL.excluded.error}),
    "sqlite": _SQLITE.on_conflict_do_update(index_elements=_ONE, set_={"error": _SQLITE.excluded.error}),
    "mysql": _MYSQL.on_duplicate_key_update(error=_MYSQL.inserted.error),
}
_IS_IT = (holdups.c.ordering_key == bindparam("of_key"), holdups.c.queue == bindparam("of_queue"), holdups.c.job == bindparam("of_job"))
_DELETE = delete(holdups).where(*_IS_IT)
_REVIVE = update(holdups).where(*_IS_IT).values(error=null())


def hold_up(connection: Connection, jobs: Collection[Holdup], given_up: Mapping[Holdup, str] = MappingProxyType({})) -> None:
    """Let these hold up what is behind them, in their order, once the transaction commits. One that does so already keeps its place.

    Those that were `given_up`, for the reason there, are on their way no more.
    """
    if jobs:
        statement = _INSERT.get(connection.dialect.name, _INSERT["mysql"])
        connection.execute(statement, [{**job._asdict(), "error": given_up.get(job)} for job in jobs])


def revive(connection: Connection, jobs: Collection[Holdup]) -> None:
    """These were given up, and are on their way again; they keep their places."""
    connection.execute(_REVIVE, [{"of_key": key, "of_queue": queue, "of_job": job} for queue, key, job in sorted(jobs)])


def let_go(connection: Connection, jobs: Collection[Holdup]) -> bool:
    """These have ended: the next of their keys may go once the transaction commits. Return whether any of them held up others."""
    gone = [connection.execute(_DELETE, {"of_key": key, "of_queue": queue, "of_job": job}).rowcount for queue, key, job in sorted(jobs)]
    if any(gone):
        wake(connection)
    return any(gone)
