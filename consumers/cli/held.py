"""What a relay could not send and will try again: said at the end of a drain, which has not done all then."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sqlalchemy import func, select

from postroom.adapters.sql.engine import reading
from postroom.adapters.sql.transaction import transact
from postroom.adapters.sql.types import now
from postroom.consumers.ledger.tables import ledger
from postroom.consumers.worker.quiet import IS_PARKED
from postroom.outbox.holdups import IS_HELD_UP
from postroom.outbox.relay import Relay
from postroom.outbox.tables import outbox

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy import Connection, Engine

    from postroom.adapters.seam import Adapter

__all__ = ["held", "held_after", "reasons"]

_BEHIND = "behind a job of the same ordering key that has failed: see `postroom dead list`"
_PARKED = "a retry that the broker refused: see `postroom dead list --source outbox`"
_PENDING = outbox.c.status == "pending"
_HELD = select(outbox.c.last_error, func.count()).where(_PENDING, outbox.c.retry_at.is_not(None)).group_by(outbox.c.last_error)
_HELD_UP = select(func.count()).where(_PENDING, outbox.c.retry_at.is_(None), outbox.c.available_at <= now(), IS_HELD_UP)
_REFUSED = select(func.count()).select_from(ledger).where(ledger.c.status == "pending", IS_PARKED)
_UNTRIED = select(outbox.c.seq).where(_PENDING, outbox.c.retry_at.is_(None), outbox.c.available_at <= now()).limit(1)


def held(engine: Engine) -> Mapping[str, int]:
    """How many rows the broker would not take yet, for each of its reasons, or not at all, or that wait behind a job that has failed."""
    return transact(reading(engine), _read)


def held_after(engine: Engine, adapter: Adapter, carriers: Iterable[str]) -> Mapping[str, int]:
    """The same, after one try with what no relay has tried yet: the work can be over before its relay has come that far. And on the broker."""
    if transact(reading(engine), lambda connection: connection.execute(_UNTRIED).first()):
        Relay(engine, adapter).drain()
    counts = Counter(held(engine))
    counts[_BEHIND] += sum(adapter.depth(carrier).get("blocked", 0) for carrier in carriers)
    return +counts


def reasons(waiting: Mapping[str, int]) -> str:
    """Say it, a line for each reason."""
    return "\n".join(f"held {count}: {reason}" for reason, count in waiting.items())


def _read(connection: Connection) -> dict[str, int]:
    counts = {reason or "the broker gave no reason": count for reason, count in connection.execute(_HELD)}
    others = {_BEHIND: connection.execute(_HELD_UP).scalar() or 0, _PARKED: connection.execute(_REFUSED).scalar() or 0}
    return {**counts, **{reason: count for reason, count in others.items() if count}}
