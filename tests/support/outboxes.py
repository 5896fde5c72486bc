"""Outboxes for tests of the relay: a database with the tables, rows in it, and a look at what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, Row, insert, null, select, text

from postroom.adapters.sql.engine import open_engine
from postroom.adapters.sql.metadata import metadata
from postroom.adapters.sql.types import now
from postroom.outbox.envelope import Envelope
from postroom.outbox.relay import Relay
from postroom.outbox.rows import NewRow, build_row, insert_rows
from postroom.outbox.tables import TABLES, outbox


@contextmanager
def outbox_at(url: str) -> Iterator[Engine]:
    """An engine on the database of this URL, with the outbox's tables in it."""
    engine = open_engine(url)
    metadata.create_all(engine, TABLES)
    yield engine
    engine.dispose()


def new_row(job_id: str, key: str = "", *, queue: str = "emails", ordered: bool = False, delay: float = 0.0, body: bytes = b"{}") -> NewRow:
    key = key or job_id
    envelope = Envelope(id=job_id, type="send", key=key, ordering_key=key, queue=queue)
    return build_row(envelope, body, ordered=ordered, delay=delay)


def enqueue(engine: Engine, *rows: NewRow) -> None:
    """Commit these rows, in this order."""
    with engine.begin() as connection:
        for row in rows:
            insert_rows(connection, [row])


def enqueue_ids(engine: Engine, *ids: str, key: str = "", **how: Any) -> None:
    """Commit a row for each id: all of one key, or each with a key of its own."""
    enqueue(engine, *(new_row(job_id, key, **how) for job_id in ids))


def fill(engine: Engine, ids: Iterable[str], *, status: str = "pending") -> None:
    """Commit very many rows at once, all due for a day, each of a key of its own."""
    columns = ("id", "queue", "type", "key", "ordering_key", "lane", "ordered", "body", "headers")
    rows = [{name: row[name] for name in columns} for row in map(new_row, ids)]
    due_since = now() - 86400.0
    with engine.begin() as connection:
        sent_at = due_since if status == "sent" else null()
        connection.execute(insert(outbox).values(status=status, enqueued_at=due_since, available_at=due_since, attempts=0, sent_at=sent_at), rows)


def rows_of(engine: Engine) -> Mapping[str, Row[Any]]:
    """All rows, by their ids."""
    with engine.connect() as connection:
        return {row.id: row for row in connection.execute(select(outbox).order_by(outbox.c.seq))}


def statuses(engine: Engine) -> dict[str, str]:
    return {job_id: row.status for job_id, row in rows_of(engine).items()}


def let_pass(engine: Engine, seconds: float) -> None:
    """Move every time in the tables into the past: as if so many seconds had gone by for all relays at once."""
    moved = {"postroom_outbox": ("available_at", "retry_at", "sent_at"), "postroom_lanes": ("until",), "postroom_relays": ("until",)}
    with engine.begin() as connection:
        for table, columns in moved.items():
            assignments = ", ".join(f"{column} = {column} - {seconds}" for column in columns)
            connection.execute(text(f"UPDATE {table} SET {assignments}"))  # noqa: S608 - all ours


def run_until_quiet(engine: Engine, relay: Relay) -> None:
    """Rounds an hour apart, until one changes nothing."""
    let_pass(engine, 3600.0)
    while relay.run_once().worked:
        let_pass(engine, 3600.0)
