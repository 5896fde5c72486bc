"""The transitions of `postroom.adapters.machine`, each as one conditional UPDATE, built once.

A job has a token if and only if it is running (a CHECK says so), so the token alone is the condition. To name the status as well would offer
the planner a partial index to scan, where its statistics are always wrong: what is pending or running changes all the time.
MySQL evaluates the assignments of an UPDATE from left to right and sees the new values: so `attempts`, which others read, comes last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Delete, Double, Integer, Select, String, Text, Update, any_, bindparam, case, delete, null, select, update
from sqlalchemy.dialects.postgresql import ARRAY

from postroom.adapters.machine import LEASE_EXPIRED

from .tables import DONE, FAILED, PENDING, RUNNING, jobs
from .types import constant, now

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

__all__ = ["ABANDON", "BY_ARRAY", "BY_LIST", "LAPSED", "OLD", "PUT_BACK", "RECLAIM", "TAKE", "UNHELD", "Statements"]

_Assignments = list[tuple[Any, Any]]

_delay = bindparam("delay", type_=Double)
_holder = bindparam("holder", type_=String(200))
_lease = bindparam("lease", type_=Double)
_most: Any = bindparam("most", type_=Integer)
_reason = bindparam("reason", type_=Text)
_receipt = bindparam("receipt", type_=String(32))

_EXHAUSTED = jobs.c.attempts + 1 >= jobs.c.max_attempts
_HAS_LAPSED = (jobs.c.status == RUNNING) & (jobs.c.lease_until < now())
UNHELD = jobs.c.token.is_(None)
_FREE: _Assignments = [(jobs.c[name], null()) for name in ("taken_at", "lease_until", "token", "worker", "in_flight")]
_CHARGE = (jobs.c.attempts, jobs.c.attempts + 1)


def _pending(available_at: ColumnElement[float]) -> _Assignments:
    return [*_FREE, (jobs.c.status, PENDING), (jobs.c.available_at, available_at)]


def _failed(reason: ColumnElement[str], attempts: ColumnElement[int]) -> _Assignments:
    return [*_FREE, (jobs.c.status, FAILED), (jobs.c.finished_at, now()), (jobs.c.last_error, reason), (jobs.c.attempts, attempts)]


def _charged(reason: ColumnElement[str], available_at: ColumnElement[float]) -> _Assignments:
    """Pending again while attempts are left, else failed."""
    status, finished_at = case((_EXHAUSTED, FAILED), else_=PENDING), case((_EXHAUSTED, now()))
    assigned = {"status": status, "finished_at": finished_at, "available_at": available_at, "last_error": reason}
    return [*_FREE, *((jobs.c[name], value) for name, value in assigned.items()), _CHARGE]


TAKE = update(jobs).values(status=RUNNING, taken_at=now(), lease_until=now() + _lease, token=_receipt, worker=_holder, in_flight=jobs.c.line)
LAPSED = select(jobs.c.seq).where(_HAS_LAPSED).limit(1)
RECLAIM = update(jobs).where(_HAS_LAPSED).ordered_values(*_charged(constant(LEASE_EXPIRED), now()))
ABANDON = update(jobs).where(jobs.c.status == RUNNING, jobs.c.worker == _holder).ordered_values(*_pending(jobs.c.available_at))
PUT_BACK = (
    update(jobs)
    .where(jobs.c.seq == bindparam("number"), jobs.c.status == FAILED)
    .values(status=PENDING, attempts=0, replays=jobs.c.replays + 1, available_at=now(), finished_at=null(), headers=bindparam("packed"))
)
OLD = (
    select(jobs.c.seq)
    .where(jobs.c.status == DONE, jobs.c.finished_at < now() - bindparam("age", type_=Double))
    .order_by(jobs.c.finished_at)
    .limit(_most)
    .with_for_update(skip_locked=True)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """What is done to a list of jobs, `seqs`. All but `take` and `remove` touch only those that `receipt` holds."""

    these: ColumnElement[bool]
    held: Select[Any]
    """Find and lock those that the receipt holds."""
    ack: Update
    fail: Update
    release: Update
    defer: Update
    dead_letter: Update
    extend: Update
    take: Update
    """For jobs that this transaction has locked."""
    remove: Delete
    """For jobs that have ended."""


def _statements(these: ColumnElement[bool]) -> Statements:
    held = these & (jobs.c.token == _receipt)
    settle = update(jobs).where(held)
    return Statements(
        these=these,
        held=select(jobs.c.seq).where(held).with_for_update(),
        ack=settle.ordered_values(*_FREE, (jobs.c.status, DONE), (jobs.c.finished_at, now())),
        fail=settle.ordered_values(*_charged(_reason, now() + _delay)),
        release=settle.ordered_values(*_pending(jobs.c.available_at)),
        defer=settle.ordered_values(*_pending(now() + _delay)),
        dead_letter=settle.ordered_values(*_failed(_reason, bindparam("attempts", type_=Integer))),
        extend=settle.values(lease_until=now() + _lease),
        take=TAKE.where(these, UNHELD),
        remove=delete(jobs).where(these, jobs.c.status.in_((DONE, FAILED))),
    )


BY_LIST = _statements(jobs.c.seq.in_(bindparam("seqs", expanding=True)))
BY_ARRAY = _statements(jobs.c.seq == any_(bindparam("seqs", type_=ARRAY(BigInteger))))  # the same text for any length: PostgreSQL plans it once
