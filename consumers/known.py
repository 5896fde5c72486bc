"""Which queues there are, also on a broker that lists none to its clients (RabbitMQ): outbox and ledger have their names."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from sqlalchemy import select

from postroom.adapters.errors import ConfigurationError
from postroom.adapters.sql.engine import reading
from postroom.adapters.sql.transaction import transact
from postroom.outbox.tables import outbox

from .ledger.tables import ledger

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection, Engine

    from postroom.adapters.seam import Adapter

__all__ = ["carriers_known"]

NEWEST = 10_000
"""So many of the outbox's last rows are looked at: it may hold millions, and no index tells its queues apart."""

_SENT = select(outbox.c.queue).order_by(outbox.c.seq.desc()).limit(NEWEST).subquery()
_OUTBOX = select(_SENT.c.queue).distinct()
_LEDGER = select(ledger.c.queue).distinct()


def carriers_known(engine: Engine, adapter: Adapter, *, named: Iterable[str] = ()) -> Sequence[str]:
    """Every carrier that the broker tells of; where it can't list them, those that are `named` or that outbox and ledger know, and that it has.

    Reads the ledger once then: some seconds for millions. Raises Unavailable when database or broker can't be reached.
    """
    if not adapter.capabilities.lists:
        for name in sorted({*named, *transact(reading(engine), _mentioned)}):
            with suppress(ConfigurationError):  # a topic: its groups have carriers of their own; or one that is gone
                adapter.dead_letters(name)
    return adapter.carriers()


def _mentioned(connection: Connection) -> set[str]:
    return {name for statement in (_OUTBOX, _LEDGER) for name in connection.execute(statement).scalars()}
