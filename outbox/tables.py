"""The outbox's tables: the rows that wait for the broker, whom they wait for, and the lanes by which relays share them."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Index, Integer, SmallInteger, String, Table, Text, UniqueConstraint

from postroom.adapters.sql.metadata import metadata
from postroom.adapters.sql.types import Blob, Instant, Key, Sequence

__all__ = ["CHANNEL", "LANES", "MAX_KEY", "MAX_TYPE", "TABLES", "holdups", "lanes", "outbox", "relays"]

CHANNEL = "postroom_outbox"
"""Where PostgreSQL notifies relays of committed rows."""
LANES = 64
"""How many lanes the rows are spread over (hash of the ordering key): the most relays that can share the work."""
MAX_KEY = 400
MAX_TYPE = 200

outbox = Table(
    "postroom_outbox",
    metadata,
    Column("seq", Sequence, primary_key=True, autoincrement=True),
    Column("id", String(36), nullable=False, index=True),  # not unique: a retry is a further row of the same job
    Column("queue", String(200), nullable=False),
    Column("type", String(MAX_TYPE), nullable=False),
    Column("key", Key(MAX_KEY), nullable=False, index=True),
    Column("ordering_key", Key(MAX_KEY), nullable=False),
    Column("lane", SmallInteger, nullable=False),
    Column("ordered", Boolean, nullable=False),
    Column("body", Blob, nullable=False),
    Column("headers", Blob, nullable=False),
    Column("status", String(8), nullable=False),  # pending, sent, parked; dropped: parked and then discarded by a person
    Column("enqueued_at", Instant, nullable=False),
    Column("available_at", Instant, nullable=False),  # its place in the line, for good
    Column("retry_at", Instant),  # a publish that must be tried again is not tried before
    Column("holds", Key(MAX_KEY)),  # the ordering key, while this row holds back the later rows of that key
    Column("attempts", Integer, nullable=False),
    Column("last_error", Text),
    Column("sent_at", Instant),  # or dropped: since when nothing waits for the row but a purge
)

_WAITING = outbox.c.status == "pending"
# Each relay reads it from the left: rows never tried (no retry_at) oldest first, and apart from them those whose retry is due.
Index(
    "postroom_outbox_due",
    outbox.c.status,
    outbox.c.retry_at,
    outbox.c.available_at,
    outbox.c.seq,
    postgresql_where=_WAITING,
    sqlite_where=_WAITING,
)
Index("postroom_outbox_held", outbox.c.holds, postgresql_where=outbox.c.holds.is_not(None), sqlite_where=outbox.c.holds.is_not(None))
Index("postroom_outbox_sent", outbox.c.sent_at, postgresql_where=outbox.c.sent_at.is_not(None), sqlite_where=outbox.c.sent_at.is_not(None))
_PARKED = outbox.c.status == "parked"
Index("postroom_outbox_parked", outbox.c.status, outbox.c.seq, postgresql_where=_PARKED, sqlite_where=_PARKED)

lanes = Table(
    "postroom_lanes",
    metadata,
    Column("lane", SmallInteger, primary_key=True, autoincrement=False),
    Column("relay", String(64)),
    Column("token", Integer, nullable=False),  # grows at each change of hands: the fence
    Column("until", Instant, nullable=False),
)

relays = Table(
    "postroom_relays",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("until", Instant, nullable=False),
)

holdups = Table(
    "postroom_holdups",
    metadata,
    Column("seq", Sequence, primary_key=True, autoincrement=True),
    Column("queue", Key(200), nullable=False),
    Column("ordering_key", Key(MAX_KEY), nullable=False),
    Column("job", Key(36), nullable=False),
    Column("error", Text),  # why it was given up: only a person can set its key free; none while it is on its way
    UniqueConstraint("ordering_key", "queue", "job", name="postroom_holdups_job"),
)
Index("postroom_holdups_first", holdups.c.ordering_key, holdups.c.queue, holdups.c.seq)

TABLES = (outbox, lanes, relays, holdups)
