"""Where is order 4711's email? The jobs of a key, or one job by its id, told from the outbox and the ledger."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import bindparam, or_, select

from postroom.adapters.sql.engine import reading
from postroom.adapters.sql.transaction import translated
from postroom.adapters.sql.types import now
from postroom.outbox.envelope import fingerprint
from postroom.outbox.holdups import FIRST_HOLDUP
from postroom.outbox.rows import MESSAGE, message_of
from postroom.outbox.tables import outbox

from .dead import DISCARDED
from .entries import entries
from .words import conflict

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
    select(*_ROW, FIRST_HOLDUP.label("first"), now().label("now"))
    .where(or_(outbox.c.key == bindparam("name"), outbox.c.id == bindparam("id")))
    .order_by(outbox.c.seq.desc())
    .limit(_MOST)
)
_NOW = select(now())
_MESSAGE = select(*MESSAGE).where(outbox.c.id == bindparam("id")).limit(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """One job in one group. Instants are seconds since the epoch, the database's clock, and `now` is what that clock says.

    `status` is pending, running, done or failed; or abandoned (running, its lease has run out) or parked (the broker refused it for good).
    `place` is where it is: outbox, broker, worker, or ledger when it has ended. `next_at`: when it goes on, if that is known.
    Where the ledger's row of its key belongs to another job, it is told what that means for this one, and `last_error` says so.
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
    held: str | None = None
    """Why the broker would not take it yet, while its row in the outbox waits to be tried again."""
    behind: str | None = None
    """The job of its ordering key that must end before its row may leave the outbox."""
    redeliveries: int | None = None
    """The broker's own count when a worker last began it: how often it had delivered this message before. Each counts otherwise, deliveries among
    them that nobody has run; the ledger alone says how many attempts there were."""


def status_of(engine: Engine, key_or_id: str, *, find_dead: Callable[[str, str], Letter | None] = lambda _queue, _id: None) -> Sequence[JobStatus]:
    """Return the jobs of a key, or the one with this id, oldest first; at most the 1000 newest. Nothing is known of it: nothing is returned.

    `find_dead(queue, id)` looks into the dead letters of a queue for a job that was sent and of which the ledger has no row: one without a handler,
    or one whose key belongs to another job.
    """
    with translated(engine), reading(engine).connect() as connection:
        rows = connection.execute(_BY_NAME, {"name": key_or_id, "id": key_or_id}).all()
        clock: float = rows[0].now if rows else connection.execute(_NOW).scalar_one()
    newest = {row.id: row for row in reversed(rows)}
    known = _entries(engine, key_or_id, rows)
    found = Found(engine=engine, entries=known, clock=clock, find_dead=find_dead)
    told = [status for row in newest.values() for status in _of_row(row, found)]
    told += [_of_entry(entry, None, clock) for entry in known if key_or_id in {entry.key, entry.job_id} and entry.job_id not in newest]
    return sorted(told, key=lambda status: (status.enqueued_at, status.id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is known beside the outbox's rows, and whom to ask for more."""

    engine: Engine
    entries: Sequence[Entry]
    clock: float
    find_dead: Callable[[str, str], Letter | None]

    def letter(self, row: OutboxRow) -> Letter | None:
        """The dead letter of this job, if there is one."""
        return self.find_dead(row.queue, row.id)

    def digest(self, row: OutboxRow) -> str:
        """The fingerprint of its payload, which is read only now."""
        with translated(self.engine), reading(self.engine).connect() as connection:
            stored: OutboxRow = connection.execute(_MESSAGE, {"id": row.id}).first()
        message = message_of(stored) if stored else None
        return fingerprint(message.body, message.headers) if message else ""


def _entries(engine: Engine, key_or_id: str, rows: Iterable[OutboxRow]) -> Sequence[Entry]:
    """The ledger's rows of the name, and of the keys of the jobs that the outbox has under it."""
    names = {key_or_id: None} | {row.key: None for row in rows}
    return list({entry.id: entry for name in names for entry in entries(engine, name)}.values())


def _of_row(row: OutboxRow, found: Found) -> Iterable[JobStatus]:
    of_key = [entry for entry in found.entries if (entry.type, entry.key) == (row.type, row.key)]
    if not of_key:
        return [_of_unbegun(row, found.clock, found.letter(row) if row.status == "sent" else None)]
    return [_of_entry(entry, row, found.clock) if entry.job_id == row.id else _of_other(entry, row, found) for entry in of_key]


def _of_other(entry: Entry, row: OutboxRow, found: Found) -> JobStatus:
    """A job whose key's row belongs to another: done with it, given up, or waiting for what becomes of it."""
    told = _of_unbegun(row, found.clock, None)
    if row.status != "sent" or entry.is_free:
        return told
    ours = found.digest(row)
    other = f"another job of this key, {entry.job_id},"
    if ours == entry.digest and entry.status == "done":
        return replace(told, status="done", place="ledger", finished_at=entry.finished_at, last_error=f"{other} is done")
    letter = None if _is_discarded(row) else found.letter(row)
    if letter or _is_discarded(row):
        return replace(told, status="failed", finished_at=letter.died_at if letter else None, last_error=letter.error if letter else row.last_error)
    if ours != entry.digest:
        return replace(told, status="failed", last_error=conflict(row.key, owner=entry.job_id, theirs=entry.digest, ours=ours))
    given_up = entry.status == "failed"
    became = f"was given up: {entry.last_error}" if given_up else f"is {entry.status}"
    return replace(told, status="failed" if given_up else "pending", last_error=f"{other} {became}")


def _is_discarded(row: OutboxRow) -> bool:
    return (row.last_error or "").startswith(DISCARDED)


def _of_unbegun(row: OutboxRow, clock: float, dead: Letter | None) -> JobStatus:
    waits, gone = row.status == "pending", row.status == "dropped" or _is_discarded(row)
    refusal = row.last_error if gone or row.status != "sent" else None  # what the broker said before it took the row is history
    return JobStatus(
        id=row.id,
        type=row.type,
        key=row.key,
        queue=row.queue,
        group=None,
        status="failed" if dead or gone else "parked" if row.status == "parked" else "pending",
        place="broker" if row.status == "sent" else "outbox",
        attempts=dead.attempts if dead else 0,
        max_attempts=None,
        replays=0,
        enqueued_at=row.enqueued_at,
        sent_at=row.sent_at,
        next_at=max(row.available_at, row.retry_at or 0.0) if waits else None,
        finished_at=dead.died_at if dead else None,
        worker=None,
        last_error=dead.error if dead else refusal,
        now=clock,
        held=_held(row),
        behind=_behind(row),
    )


def _held(row: OutboxRow) -> str | None:
    return (row.last_error or "the broker gave no reason") if row.status == "pending" and row.retry_at is not None else None


def _behind(row: OutboxRow) -> str | None:
    return row.first if row.status == "pending" and row.first != row.id else None


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
        held=_held(row) if row else None,
        behind=_behind(row) if row else None,
        redeliveries=entry.redeliveries,
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
