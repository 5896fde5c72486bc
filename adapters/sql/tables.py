"""The SQL broker's two tables: the queues that were declared, and one row for each job, from its publish until it is tidied away."""

from __future__ import annotations

from sqlalchemy import Boolean, CheckConstraint, Column, Double, Index, Integer, String, Table, Text, UniqueConstraint

from .metadata import metadata
from .types import Blob, Instant, Key, Sequence, constant

__all__ = ["DONE", "FAILED", "MAX_ID", "MAX_KEY", "MAX_QUEUE", "PENDING", "RUNNING", "jobs", "queues"]

MAX_QUEUE = 200
MAX_ID = 200
MAX_KEY = 400

PENDING, RUNNING, DONE, FAILED = (constant(status) for status in ("pending", "running", "done", "failed"))

queues = Table(
    "postroom_queues",
    metadata,
    Column("name", Key(MAX_QUEUE), primary_key=True),  # the carrier
    Column("topic", Key(MAX_QUEUE), index=True),  # what its messages are published to, where that is not its own name
    Column("ordered", Boolean, nullable=False),
    Column("lease", Double, nullable=False),
    Column("dead_letter", Key(MAX_QUEUE), nullable=False),
)

jobs = Table(
    "postroom_jobs",
    metadata,
    Column("seq", Sequence, primary_key=True, autoincrement=True),
    Column("queue", Key(MAX_QUEUE), nullable=False),
    Column("id", Key(MAX_ID), nullable=False),
    Column("body", Blob, nullable=False),
    Column("headers", Blob, nullable=False),
    Column("ordering_key", Key(MAX_KEY)),
    Column("line", Key(MAX_KEY)),  # the ordering key again, in a queue declared ordered
    Column("in_flight", Key(MAX_KEY)),  # the line, while this job runs: unique, so no second job of the line can
    Column("status", String(8), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("replays", Integer, nullable=False),
    Column("enqueued_at", Instant, nullable=False),
    Column("due_at", Instant, nullable=False),  # its place in its line, for good
    Column("available_at", Instant, nullable=False),  # its place in the queue: not taken before
    Column("taken_at", Instant),
    Column("lease_until", Instant),
    Column("token", String(32)),
    Column("worker", String(200)),
    Column("finished_at", Instant),
    Column("last_error", Text),
    UniqueConstraint("queue", "id", name="postroom_jobs_id"),
    CheckConstraint("status IN ('pending', 'running', 'done', 'failed')", name="postroom_jobs_status"),
    CheckConstraint("attempts >= 0 AND attempts <= max_attempts", name="postroom_jobs_attempts"),
    CheckConstraint("(status = 'running') = (token IS NOT NULL)", name="postroom_jobs_token"),
    CheckConstraint("(status = 'running') = (lease_until IS NOT NULL)", name="postroom_jobs_lease"),
    CheckConstraint("(status IN ('done', 'failed')) = (finished_at IS NOT NULL)", name="postroom_jobs_end"),
    CheckConstraint("status <> 'failed' OR last_error IS NOT NULL", name="postroom_jobs_reason"),
)


def _index(name: str, *columns: str, where: object) -> None:
    """An index of the rows that it is for, and of no others where the database can; `columns` alone keep a scan short where it can't."""
    Index(f"postroom_jobs_{name}", *(jobs.c[column] for column in columns), postgresql_where=where, sqlite_where=where)


_index("due", "queue", "status", "available_at", "seq", where=jobs.c.status == PENDING)
_index("leases", "status", "lease_until", where=jobs.c.status == RUNNING)
_index("done", "status", "finished_at", where=jobs.c.status == DONE)
_index("dead", "queue", "status", "finished_at", "seq", where=jobs.c.status == FAILED)
_index("line", "queue", "line", "status", "due_at", "seq", where=jobs.c.line.is_not(None))
Index(
    "postroom_jobs_in_flight",
    jobs.c.queue,
    jobs.c.in_flight,
    unique=True,
    postgresql_where=jobs.c.in_flight.is_not(None),
    sqlite_where=jobs.c.in_flight.is_not(None),
)
