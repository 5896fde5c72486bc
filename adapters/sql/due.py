"""Which jobs may be taken now: an index scan that stops at the first ones it needs, and locks those only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Integer, bindparam, func, or_, select

from .tables import FAILED, MAX_QUEUE, PENDING, jobs
from .types import Key, now

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, FromClause, Select

__all__ = ["ANY_DUE", "FAILED_LINES", "next_in_line", "oldest"]

NEAR = 500
"""How many jobs, of lines that could move, are looked at before all are."""

_due = jobs.alias("due")
_near = jobs.alias("near")
_others = jobs.alias("others")
_carrier = bindparam("carrier", type_=Key(MAX_QUEUE))
_most: Any = bindparam("most", type_=Integer)


FAILED_LINES = select(_others.c.line).where(_others.c.queue == _carrier, _others.c.status == FAILED, _others.c.line.is_not(None))
"""The lines of `carrier` that a failed job holds: nothing of them may go."""


def _is_due(job: FromClause) -> ColumnElement[bool]:
    return (job.c.status == PENDING) & (job.c.available_at <= now())


def _is_in_a_moving_line(job: FromClause) -> ColumnElement[bool]:
    """No job of its line runs, and none has failed. Those lines are listed once: to pass over what waits there is cheap, however much it is."""
    running = select(_others.c.in_flight).where(_others.c.queue == _carrier, _others.c.in_flight.is_not(None))
    return job.c.line.not_in(running) & job.c.line.not_in(FAILED_LINES)


_AHEAD = or_(_others.c.due_at < _due.c.due_at, (_others.c.due_at == _due.c.due_at) & (_others.c.seq < _due.c.seq))
_SAME_LINE = (_others.c.queue == _due.c.queue) & (_others.c.line == _due.c.line)
_before_it = select(_others.c.seq).where(_SAME_LINE, _others.c.status.in_((PENDING, FAILED)), _AHEAD).limit(1)
# A scalar subquery and not an EXISTS: it stays one look into an index for each candidate; no planner makes it a join of all with all.
_IS_NEXT = or_(_due.c.line.is_(None), _is_in_a_moving_line(_due) & _before_it.scalar_subquery().is_(None))

_moving = select(_near.c.available_at).where(_near.c.queue == _carrier, _is_due(_near), or_(_near.c.line.is_(None), _is_in_a_moving_line(_near)))
_HORIZON = _moving.order_by(_near.c.available_at, _near.c.seq).limit(1).offset(NEAR).scalar_subquery()
_IS_NEAR = _due.c.available_at <= func.coalesce(_HORIZON, now())

ANY_DUE = select(_due.c.seq).where(_due.c.queue.in_(bindparam("carriers", expanding=True)), _is_due(_due)).limit(1)
"""Whether a take from these carriers may find something."""


def oldest(*columns: str) -> Select[Any]:
    """Up to `most` jobs of `carrier` that are due, oldest first, but for those that another transaction has locked."""
    return _locked(columns)


def next_in_line(*columns: str) -> tuple[Select[Any], Select[Any]]:
    """The same for a queue declared ordered: only the first unfinished job of each line, and none of a line in which one runs.

    The first statement looks at the oldest jobs only, the second at all: where a few lines are long, most that wait may not go yet.
    """
    return _locked(columns, _IS_NEAR, _IS_NEXT), _locked(columns, _IS_NEXT)


def _locked(columns: tuple[str, ...], *conditions: ColumnElement[bool]) -> Select[Any]:
    chosen = select(*(_due.c[column] for column in columns)).where(_due.c.queue == _carrier, _is_due(_due), *conditions)
    statement = chosen.order_by(_due.c.available_at, _due.c.seq).limit(_most)
    for dialect in ("mysql", "mariadb"):  # with any other index it would sort, and so lock, all that wait
        statement = statement.with_hint(_due, "FORCE INDEX (postroom_jobs_due)", dialect)
    return statement.with_for_update(skip_locked=True)
