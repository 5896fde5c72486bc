"""What a careful person would write by hand with SQLAlchemy Core for the same work: the yardsticks of the benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, bindparam, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from postroom.adapters.sql.types import now
from postroom.consumers.ledger.tables import ledger
from postroom.outbox.tables import outbox

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_INSERT = insert(outbox).inline()
_CLAIM = select(outbox.c.seq, outbox.c.body, outbox.c.headers).where(outbox.c.status == "pending", outbox.c.available_at <= now())
_CLAIM = _CLAIM.order_by(outbox.c.available_at, outbox.c.seq).limit(bindparam("batch")).with_for_update(skip_locked=True)
_MARK = update(outbox).where(outbox.c.seq.in_(bindparam("seqs", expanding=True)))
_CLAIMED = _MARK.values(status="claimed")
_SENT = _MARK.values(status="sent", sent_at=now())


def insert_rows(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """One INSERT for each row, as a service makes one for each of its requests."""
    for row in rows:
        connection.execute(_INSERT, row)


def relay(engine: Engine, batch: int) -> int:
    """Claim, send to nobody, mark: until nothing is left. Return how many."""
    total = 0
    while True:
        with engine.begin() as connection:
            rows = connection.execute(_CLAIM, {"batch": batch}).all()
            if rows:
                connection.execute(_CLAIMED, {"seqs": [row.seq for row in rows]})
        if not rows:
            return total
        sent = [(row.body, row.headers) for row in rows]
        with engine.begin() as connection:
            connection.execute(_SENT, {"seqs": [row.seq for row in rows]})
        total += len(sent)


def begin_and_finish(engine: Engine, rows: Sequence[dict[str, Any]], group: int) -> None:
    """Begin a group and finish the group before it in one transaction, and so on: a ledger with nothing around it."""
    upsert = (sqlite if engine.dialect.name == "sqlite" else postgresql).insert(ledger)
    begin = upsert.on_conflict_do_nothing(index_elements=["group_name", "type", "key"]).returning(ledger.c.id)
    finish = update(ledger).where(ledger.c.id.in_(bindparam("ids", expanding=True)), ledger.c.status == "running")
    finish = finish.values(status="done", finished_at=now(), lease_until=None)
    begun: list[int] = []
    for part in (*_parts(rows, group), []):
        with engine.begin() as connection:
            if begun:
                connection.execute(finish, {"ids": begun})
            begun = list(connection.execute(begin, part).scalars()) if part else []


def _parts(rows: Sequence[dict[str, Any]], size: int) -> Iterator[Sequence[dict[str, Any]]]:
    return (rows[start : start + size] for start in range(0, len(rows), size))
