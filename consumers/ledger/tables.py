"""The ledger's table: one row for each (group, type, key), the authority on attempts and outcomes on every backend."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, String, Table, Text, UniqueConstraint

from postroom.adapters.sql.metadata import metadata
from postroom.adapters.sql.types import Instant, Key, Sequence
from postroom.outbox.tables import MAX_KEY, MAX_TYPE

__all__ = ["MAX_GROUP", "MAX_WORKER", "ledger"]

MAX_GROUP = 100
MAX_WORKER = 100

ledger = Table(
    "postroom_ledger",
    metadata,
    Column("id", Sequence, primary_key=True, autoincrement=True),
    Column("group_name", Key(MAX_GROUP), nullable=False),
    Column("type", Key(MAX_TYPE), nullable=False),
    Column("key", Key(MAX_KEY), nullable=False),
    Column("job_id", Key(36), nullable=False, index=True),  # the job that made the row, or was last begun under it
    Column("queue", String(200), nullable=False),
    Column(
        "digest", String(32), nullable=False
    ),  # of the payload: another one under the same key is a conflict; empty once a person discarded the job
    Column("status", String(8), nullable=False),  # pending, running, done, failed
    Column("attempts", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("suspicions", Integer, nullable=False),  # crashes of its process that may have been this job's doing; charged when proven
    Column("fence", BigInteger, nullable=False),  # another one at each begin: id and fence name one attempt
    Column("copy", Integer, nullable=False),  # the number of the message copy that is alive; older ones are stale
    Column("replays", Integer, nullable=False),
    Column("redeliveries", Integer),  # how often the backend said, at the latest begin, that it had delivered the message before: a hint
    Column("enqueued_at", Instant, nullable=False),
    Column("taken_at", Instant),
    Column("lease_until", Instant),
    Column("worker", String(MAX_WORKER)),  # who holds it, while it is running
    Column("retry_at", Instant),
    Column("finished_at", Instant),
    Column("last_error", Text),
    UniqueConstraint("key", "type", "group_name", name="postroom_ledger_key"),  # the key first: `postroom status KEY` reads it
)

_HELD = ledger.c.worker.is_not(None)  # not by status: PostgreSQL would look for running rows in it that it finds sooner by their ids
Index("postroom_ledger_held", ledger.c.worker, postgresql_where=_HELD, sqlite_where=_HELD)
_ENDED = ledger.c.finished_at.is_not(None)
Index("postroom_ledger_ended", ledger.c.finished_at, postgresql_where=_ENDED, sqlite_where=_ENDED)
