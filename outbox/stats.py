"""How much waits in the outbox, and for how long: what an operator watches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import case, func, select

from postroom.adapters.sql.types import constant, now

from .tables import outbox

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

__all__ = ["Backlog", "stats"]

_IS_PENDING = outbox.c.status == constant("pending")
_IS_PARKED = outbox.c.status == constant("parked")
_IS_DUE = outbox.c.available_at <= now()
_PENDING = (
    select(
        outbox.c.queue,
        func.count(case((_IS_DUE, 1))).label("due"),
        func.count(case((~_IS_DUE, 1))).label("delayed"),
        func.count(outbox.c.retry_at).label("retrying"),
        func.max(case((_IS_DUE, now() - outbox.c.available_at))).label("lag"),
    )
    .where(_IS_PENDING)
    .group_by(outbox.c.queue)
)
_PARKED = select(outbox.c.queue, func.count().label("parked")).where(_IS_PARKED).group_by(outbox.c.queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The rows of one queue that are not sent. `due` rows could leave now, but for the `retrying` ones that the broker would not take yet.

    `delayed` rows wait for the time that their caller chose; `parked` ones wait for a person. `lag` is the age of the oldest due row, in seconds.
    """

    due: int = 0
    delayed: int = 0
    retrying: int = 0
    parked: int = 0
    lag: float = 0.0


def stats(connection: Connection) -> Mapping[str, Backlog]:
    """Return the backlog of each queue that has any, by its name. Reads every row that is not sent; sent ones are history and not counted."""
    parked = {row.queue: row.parked for row in connection.execute(_PARKED)}
    pending = {row.queue: row for row in connection.execute(_PENDING)}
    result = {queue: Backlog(parked=count) for queue, count in parked.items()}
    for queue, row in pending.items():
        result[queue] = Backlog(due=row.due, delayed=row.delayed, retrying=row.retrying, parked=parked.get(queue, 0), lag=max(row.lag or 0.0, 0.0))
    return dict(sorted(result.items()))
