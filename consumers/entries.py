"""The ledger's rows as an operator sees them: read only, by key or by job."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, or_, select

from postroom.adapters.sql.engine import reading
from postroom.adapters.sql.transaction import translated

from .ledger.entry import Entry
from .ledger.tables import ledger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Engine

__all__ = ["COLUMNS", "entries", "of_job", "owner"]


COLUMNS = [ledger.c[field.name] for field in fields(Entry)]
_BY_NAME = (
    select(*COLUMNS).where(or_(ledger.c.key == bindparam("name"), ledger.c.job_id == bindparam("id"))).order_by(ledger.c.enqueued_at, ledger.c.id)
)
_BY_JOB = select(*COLUMNS).where(ledger.c.job_id == bindparam("id"))
_BY_KEY = select(*COLUMNS).where(ledger.c.key == bindparam("key"), ledger.c.type == bindparam("type"))


def entries(engine: Engine, key_or_id: str) -> Sequence[Entry]:
    """The rows of a key, or those that a job made or was last begun under; oldest first."""
    return _read(engine, _BY_NAME, {"name": key_or_id, "id": key_or_id})


def owner(engine: Engine, *, key: str, type: str, queue: str) -> Entry | None:  # noqa: A002 - the word of the trade
    """The row that a job from carrier `queue` belongs to: its group's, which is told by the carrier where several groups know the key."""
    found = _read(engine, _BY_KEY, {"key": key, "type": type})
    same = [entry for entry in found if entry.queue == queue]
    return same[0] if same else found[0] if len(found) == 1 else None


def of_job(engine: Engine, job: str) -> Sequence[Entry]:
    """The rows, one for each group, that the job with this id made or was last begun under."""
    return _read(engine, _BY_JOB, {"id": job})


def _read(engine: Engine, statement: Any, values: Mapping[str, str]) -> Sequence[Entry]:  # noqa: ANN401 - a Select of many columns
    with translated(engine), reading(engine).connect() as connection:
        return [Entry(**row) for row in connection.execute(statement, values).mappings()]
