"""Jobs that were given up and whose dead letter is gone: its queue was purged or deleted, its topic's retention has passed.

To the ledger they are given up still: their key is taken, and in an ordered queue they hold up the jobs behind them. A job is *lost* when its letter
is not among the dead letters, nothing of it waits in the outbox, and

| what is known of it                                                            | it is looked for                     |
|--------------------------------------------------------------------------------|--------------------------------------|
| it holds up its ordering key, and was given up                                 | always                               |
| it holds up its ordering key, and there was no sign of it for an hour          | by name                              |
| the ledger says failed, and nobody has discarded it                            | by name: it may be purged on purpose |
| the ledger waits for it, for an hour, and the outbox has its message no more,  | by name                              |
| or says that it was discarded                                                  |                                      |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import bindparam, or_, select

from postroom.adapters.seam import Message, retries_of
from postroom.adapters.sql.engine import reading
from postroom.adapters.sql.transaction import transact
from postroom.adapters.sql.types import now
from postroom.outbox.envelope import Envelope, read_envelope
from postroom.outbox.holdups import Holdup, let_go, revive
from postroom.outbox.rows import MESSAGE, build_row, insert_rows, message_of
from postroom.outbox.tables import holdups, outbox

from .entries import entries, of_job
from .ledger.statements import RETRY
from .letters import DISCARDED, PAGE, Letter, behind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from sqlalchemy import Connection, Engine, Row, Select

    from .ledger.entry import Entry
    from .letters import QueuePlace, Revival

__all__ = ["QUIET", "LostPlace"]

QUIET = 3600.0
"""After so long (seconds) without a sign a job is taken for lost by who names it: the default of `postroom resend`."""

_HOLDUPS = select(holdups).where(holdups.c.queue == bindparam("queue")).order_by(holdups.c.seq)
_GIVEN_UP = _HOLDUPS.where(holdups.c.error.is_not(None))
_OF_KEY = select(outbox.c.id).where(outbox.c.key == bindparam("name"))
_NAMED = _HOLDUPS.where(or_(holdups.c.job == bindparam("name"), holdups.c.ordering_key == bindparam("name"), holdups.c.job.in_(_OF_KEY)))
_ROWS: Select[Any] = (
    select(*(outbox.c[name] for name in ("seq", "queue", "status", "sent_at", "last_error")))
    .where(outbox.c.id == bindparam("job"))
    .order_by(outbox.c.seq.desc())
)
_MESSAGE: Select[Any] = select(outbox.c.ordered, *MESSAGE).where(outbox.c.seq == bindparam("seq"))
_LOCKED = _ROWS.with_for_update()
_HOLDS = _HOLDUPS.where(holdups.c.ordering_key == bindparam("name"), holdups.c.job == bindparam("job")).with_for_update()
_NOW = select(now())


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What is left of a job. `holdup`: its row, if it holds up its ordering key; `rows`: those that the outbox still has, the newest first."""

    job: str
    holdup: Row[Any] | None
    entry: Entry | None
    rows: Sequence[Row[Any]]

    def is_lost(self, clock: float) -> bool:
        """See the table above; its letter is gone."""
        if any(row.status in {"pending", "parked"} for row in self.rows):
            return False
        is_quiet = self._seen < clock - QUIET
        if self.entry is not None and self.entry.status in {"pending", "running"}:
            return is_quiet and not (self.rows and not (self.rows[0].last_error or "").startswith(DISCARDED))
        if self.entry is not None and self.entry.status == "failed" and not self.entry.is_free:
            return True
        return self.holdup is not None and (is_quiet or self.holdup.error is not None)

    @property
    def error(self) -> str:
        """Why it was given up, as far as that is known."""
        noted = self.holdup.error if self.holdup is not None else None
        return noted or (self.entry.last_error if self.entry else None) or "there was no sign of it for long"

    @property
    def _seen(self) -> float:
        known = [self.entry.enqueued_at, self.entry.taken_at, self.entry.lease_until, self.entry.retry_at] if self.entry else []
        return max(instant or 0.0 for instant in (*known, *(row.sent_at for row in self.rows[:1]), 0.0))


class Listed(NamedTuple):
    """What was seen of a lost job when it was listed: by this it is told whether anybody has acted on it since. `seq`: its newest row's."""

    seq: int | None
    ordering_key: str


class LostPlace:
    """What is lost of one carrier: a place like the others, but that a letter's message is what the outbox has kept, if it has.

    All that is known of it is in one database: so what is done with a letter is one transaction there, whole or not at all.

    `dead` are the dead letters among which it would be. `names` are keys and ids of jobs.
    """

    source = "ledger"

    def __init__(self, engine: Engine, queue: str, dead: Sequence[QueuePlace], names: Collection[str]) -> None:
        self.queue = queue
        self._engine = engine
        self._dead = dead
        self._names = sorted(names)
        self._found: Sequence[Trace] = ()
        self._listed: dict[str, Listed] = {}

    def page(self, after: str | None) -> Sequence[Letter]:
        """See `Place`."""
        if after is None:
            self._found = list(self._look())
        start = next((place for place, trace in enumerate(self._found, 1) if trace.job == after), 0)
        return [self._letter(trace) for trace in self._found[start : start + PAGE]]

    def put_back(self, revivals: Mapping[str, Revival]) -> Sequence[str]:
        """Have relays send these once more, as the outbox has kept them; return those on which nobody has acted since they were listed."""
        return transact(self._engine, lambda connection: [job for job, how in revivals.items() if self._send_again(connection, job, how)])

    def remove(self, ids: Sequence[str], reason: str) -> Sequence[str]:  # noqa: ARG002 - the ledger keeps it
        """Let these hold up others no more; return those that did, and on which nobody has acted since they were listed. No more is left of them."""
        return transact(self._engine, lambda connection: [job for job in ids if self._let_go(connection, job)])

    def _look(self) -> Iterator[Trace]:
        known = [entry.job_id for name in self._names for entry in entries(self._engine, name) if entry.queue == self.queue]
        clock, held = transact(reading(self._engine), lambda connection: self._read(connection, known))
        jobs = dict.fromkeys([*held, *known])
        dead = self._among_the_dead() if jobs else ()
        for job in jobs:
            if job not in dead and (trace := self._trace(job, held.get(job))).is_lost(clock):
                yield trace

    def _read(self, connection: Connection, known: Sequence[str]) -> tuple[float, dict[str, Row[Any]]]:
        by_name = [(_NAMED, {"queue": self.queue, "name": name}) for name in (*self._names, *known)]
        asked = by_name or [(_GIVEN_UP, {"queue": self.queue})]
        held = {row.job: row for statement, values in asked for row in connection.execute(statement, values)}
        return connection.execute(_NOW).scalar_one(), held

    def _among_the_dead(self) -> Collection[str]:
        return {letter.envelope.id if letter.envelope else letter.message.id for place in self._dead for letter in behind(place)}

    def _trace(self, job: str, holdup: Row[Any] | None) -> Trace:
        entry = next(filter(self._is_mine, of_job(self._engine, job)), None)
        return Trace(job=job, holdup=holdup, entry=entry, rows=transact(reading(self._engine), lambda connection: self._rows(connection, job)))

    def _is_mine(self, entry: Entry) -> bool:
        return self.queue in {entry.queue, retries_of(entry.queue)}

    def _rows(self, connection: Connection, job: str, statement: Select[Any] = _ROWS) -> Sequence[Row[Any]]:
        """Those to this carrier, or to its topic."""
        return [row for row in connection.execute(statement, {"job": job}) if self.queue == row.queue or self.queue.startswith(f"{row.queue}.")]

    def _letter(self, trace: Trace) -> Letter:
        message = transact(reading(self._engine), lambda connection: self._message(connection, trace)) if trace.rows else None
        envelope = read_envelope(message) if message else self._envelope(trace)
        self._listed.setdefault(trace.job, Listed(trace.rows[0].seq if trace.rows else None, envelope.ordering_key))
        ended = trace.entry.finished_at if trace.entry else trace.rows[0].sent_at if trace.rows else None
        return Letter(
            source=self.source,
            queue=self.queue,
            id=trace.job,
            message=message or Message(id=trace.job, queue=self.queue, body=b"", headers={}),
            error=trace.error,
            attempts=trace.entry.attempts if trace.entry else 0,
            died_at=ended or 0.0,
            envelope=envelope,
            is_lost=message is None,
        )

    def _message(self, connection: Connection, trace: Trace) -> Message | None:
        row = connection.execute(_MESSAGE, {"seq": trace.rows[0].seq}).first()
        return replace(message_of(row), queue=self.queue) if row else None

    def _envelope(self, trace: Trace) -> Envelope:
        """Of a job that the outbox has forgotten: what ledger or holdup tell. A type that nobody knows is none that the ledger knows."""
        entry, held_key = trace.entry, trace.holdup.ordering_key if trace.holdup is not None else None
        return Envelope(
            id=trace.job,
            type=entry.type if entry else "?",
            key=entry.key if entry else held_key or "?",
            ordering_key=held_key or (entry.key if entry else "?"),
            queue=self.queue,
            enqueued_at=entry.enqueued_at if entry else 0.0,
            copy=entry.copy if entry else 0,
            replays=entry.replays if entry else 0,
            mapped=entry.digest if entry else None,
        )

    def _send_again(self, connection: Connection, job: str, how: Revival) -> bool:
        """By a row of its own, so that of a topic's groups only this one has it again."""
        rows = self._lock(connection, job)
        if not rows or rows[0].status != "sent" or not self._is_revived(connection, job, how):
            return False
        row = connection.execute(_MESSAGE, {"seq": rows[0].seq}).one()
        message = message_of(row)
        again = read_envelope(replace(message, queue=self.queue, headers={**message.headers, **how.headers}))
        insert_rows(connection, [build_row(again, row.body, ordered=row.ordered)])
        return True

    def _lock(self, connection: Connection, job: str) -> Sequence[Row[Any]] | None:
        """Its rows, under lock; None when there is another than those that were listed, or one of them is gone."""
        connection.execute(_LOCKED, {"job": job}).all()  # whoever acts on it is waited for; what he has inserted only the next one sees
        rows = self._rows(connection, job, _LOCKED)
        return rows if (rows[0].seq if rows else None) == self._listed[job].seq else None

    def _is_revived(self, connection: Connection, job: str, how: Revival) -> bool:
        """What says of it that it was given up says so no more; False, and nothing changed, where nothing has said so any more."""
        if how.failed and not connection.execute(RETRY, {"row_id": how.failed[0], "old_replays": how.failed[1]}).rowcount:
            return False
        held = {"queue": self.queue, "name": self._listed[job].ordering_key, "job": job}
        if not how.is_known and not connection.execute(_HOLDS, held).all():
            return False
        revive(connection, self._holdups(job))
        return True

    def _let_go(self, connection: Connection, job: str) -> bool:
        return self._lock(connection, job) is not None and let_go(connection, self._holdups(job))

    def _holdups(self, job: str) -> Collection[Holdup]:
        """Where its queue is another program's, its copies are in the one beside it."""
        return [Holdup(queue, self._listed[job].ordering_key, job) for queue in (self.queue, retries_of(self.queue))]
