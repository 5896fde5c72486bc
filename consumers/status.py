"""Where is order 4711's email? The jobs of a key, or one job by its id, told from the outbox and the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import bindparam, or_, select

from postroom.adapters.sql.engine import reading
from postroom.adapters.sql.transaction import translated
from postroom.adapters.sql.types import now
from postroom.outbox.tables import outbox

from .entries import entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sqlalchemy import Engine

    from .dead import Letter
    from .ledger.entry import Entry

__all__ = ["JobStatus", "status_of"]

OutboxRow: TypeAlias = Any
"""A row with the columns `_ROW`."""

_MOST = 1000
_NAMES = ("id", "queue", "type", "key", "status", "enqueued_at", "available_at", "retry_at", "attempts", "last_error", "sent_at")
_ROW = [outbox.c[name] for name in _NAMES]
_BY_NAME = (
    select(*_ROW, now().label("now"))
    .where(or_(outbox.c.key == bindparam("name"), outbox.c.id == bindparam("id")))
    .order_by(outbox.c.seq.desc())
    .limit(_MOST)
)
_NOW = select(now())


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """One job in one group. Instants are seconds since the epoch, the database's clock, and `now` is what that clock says.

    `status` is pending, running, done or failed; or abandoned (running, its lease has run out) or parked (the broker refused it for good).
    `place` is where it is: outbox, broker, worker, or ledger when it has ended. `next_at`: when it goes on, if that is known.
    """

    id: str
    type: str
    key: str
    queue: str
    group: str | None
    status: str
    place: str
    attempts: int
    max_attempts: int | None
    replays: int
    enqueued_at: float
    sent_at: float | None
    next_at: float | None
    finished_at: float | None
    worker: str | None
    last_error: str | None
    now: float


def status_of(engine: Engine, key_or_id: str, *, find_dead: Callable[[str, str], Letter | None] = lambda _queue, _id: None) -> Sequence[JobStatus]:
    """Return the jobs of a key, or the one with this id, oldest first; at most the 1000 newest. Nothing is known of it: nothing is returned.

    `find_dead(queue, id)` looks into the dead letters of a queue for a job that was sent and that the ledger has never seen: one without a handler.
    """
    with translated(engine), reading(engine).connect() as connection:
        rows = connection.execute(_BY_NAME, {"name": key_or_id, "id": key_or_id}).all()
        clock: float = rows[0].now if rows else connection.execute(_NOW).scalar_one()
    newest = {row.id: row for row in reversed(rows)}
    known = _entries(engine, key_or_id, rows)
    told = [status for row in newest.values() for status in _of_row(row, known, clock, find_dead)]
    seen = {(status.type, status.key) for status in told}
    told += [_of_entry(entry, None, clock) for entry in known if (entry.type, entry.key) not in seen]
    return sorted(told, key=lambda status: (status.enqueued_at, status.id))


def _entries(engine: Engine, key_or_id: str, rows: Iterable[OutboxRow]) -> Sequence[Entry]:
    """The ledger's rows of the name, and of the keys of the jobs that the outbox has under it."""
    names = {key_or_id: None} | {row.key: None for row in rows}
    return list({entry.id: entry for name in names for entry in entries(engine, name)}.values())


def _of_row(row: OutboxRow, known: Iterable[Entry], clock: float, find_dead: Callable[[str, str], Letter | None]) -> Iterable[JobStatus]:
    mine = [entry for entry in known if (entry.type, entry.key) == (row.type, row.key)]
    if mine:
        return [_of_entry(entry, row, clock) for entry in mine]
    dead = find_dead(row.queue, row.id) if row.status == "sent" else None
    return [_of_unbegun(row, clock, dead)]


def _of_unbegun(row: OutboxRow, clock: float, dead: Letter | None) -> JobStatus:
    waits = row.status == "pending"
    return JobStatus(
        id=row.id,
        type=row.type,
        key=row.key,
        queue=row.queue,
        group=None,
        status="failed" if dead or row.status == "dropped" else "parked" if row.status == "parked" else "pending",
        place="broker" if row.status == "sent" else "outbox",
        attempts=dead.attempts if dead else 0,
        max_attempts=None,
        replays=0,
        enqueued_at=row.enqueued_at,
        sent_at=row.sent_at,
        next_at=max(row.available_at, row.retry_at or 0.0) if waits else None,
        finished_at=dead.died_at if dead else None,
        worker=None,
        last_error=dead.error if dead else row.last_error,
        now=clock,
    )


def _of_entry(entry: Entry, row: OutboxRow | None, clock: float) -> JobStatus:
    state = _state(entry, row, clock)
    return JobStatus(
        id=row.id if row else entry.job_id,
        type=entry.type,
        key=entry.key,
        queue=entry.queue,
        group=entry.group_name,
        enqueued_at=row.enqueued_at if row else entry.enqueued_at,
        attempts=entry.attempts,
        max_attempts=entry.max_attempts,
        replays=entry.replays,
        sent_at=row.sent_at if row else None,
        worker=entry.worker if entry.status == "running" else None,
        finished_at=entry.finished_at,
        last_error=entry.last_error,
        now=clock,
        **state,
    )


def _state(entry: Entry, row: OutboxRow | None, clock: float) -> Mapping[str, Any]:
    """Status, place and next instant of a job that the ledger knows; its newest message may still be in the outbox."""
    if entry.status == "running":
        lease = entry.lease_until or 0.0
        return {"status": "abandoned" if lease < clock else "running", "place": "worker", "next_at": lease}
    if row is not None and row.status == "parked":
        return {"status": "parked", "place": "outbox", "next_at": None}
    if row is not None and row.status == "pending":
        return {"status": "pending", "place": "outbox", "next_at": max(row.available_at, row.retry_at or 0.0)}
    ended = entry.status != "pending"
    return {"status": entry.status, "place": "ledger" if ended else "broker", "next_at": None if ended else entry.retry_at}
