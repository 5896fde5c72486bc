"""Which jobs may be taken now: an index scan that stops at the first ones it needs, and locks those only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Integer, bindparam, or_, select

from .tables import FAILED, MAX_QUEUE, PENDING, jobs
from .types import Key, now

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Select

__all__ = ["oldest_due"]

_due = jobs.alias("due")
_others = jobs.alias("others")
_most: Any = bindparam("most", type_=Integer)
_IS_DUE = (_due.c.queue == bindparam("carrier", type_=Key(MAX_QUEUE))) & (_due.c.status == PENDING) & (_due.c.available_at <= now())
_AHEAD = or_(_others.c.due_at < _due.c.due_at, (_others.c.due_at == _due.c.due_at) & (_others.c.seq < _due.c.seq))


def _no_other(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    """A scalar subquery and not an EXISTS: it stays one look into an index for each candidate; no planner turns it into a join of all with all."""
    return select(_others.c.seq).where(_others.c.queue == _due.c.queue, *conditions).limit(1).scalar_subquery().is_(None)


_IS_NEXT_IN_LINE = or_(
    _due.c.line.is_(None),
    _no_other(_others.c.in_flight == _due.c.line)
    & _no_other(_others.c.line == _due.c.line, _others.c.status == PENDING, _AHEAD)
    & _no_other(_others.c.line == _due.c.line, _others.c.status == FAILED, _AHEAD),
)


def oldest_due(*columns: str, in_order: bool) -> Select[Any]:
    """Up to `most` jobs of `carrier`, oldest first, but for those that another transaction has locked.

    `in_order`, for a queue declared ordered: only the first unfinished job of each line, and none of a line in which one runs.
    """
    conditions = (_IS_DUE, _IS_NEXT_IN_LINE) if in_order else (_IS_DUE,)
    statement = select(*(_due.c[column] for column in columns)).where(*conditions).order_by(_due.c.available_at, _due.c.seq).limit(_most)
    for dialect in ("mysql", "mariadb"):  # with any other index it would sort, and so lock, all that wait
        statement = statement.with_hint(_due, "FORCE INDEX (postroom_jobs_due)", dialect)
    return statement.with_for_update(skip_locked=True)
