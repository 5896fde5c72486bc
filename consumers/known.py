"""Which queues there are, also on a broker that lists none to its clients (RabbitMQ): outbox and ledger have their names. And which are gone."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from sqlalchemy import func, not_, or_, select

from postroom.adapters.errors import ConfigurationError
from postroom.adapters.sql.engine import reading
from postroom.adapters.sql.transaction import transact
from postroom.outbox.tables import outbox

from .ledger.tables import ledger
from .letters import DISCARDED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sqlalchemy import Connection, Engine

    from postroom.adapters.seam import Adapter

__all__ = ["carriers_known", "sent_and_gone"]

NEWEST = 10_000
"""So many of the outbox's last rows are looked at: it may hold millions, and no index tells its queues apart."""

_ROW = [outbox.c[name] for name in ("id", "queue", "type", "key", "status", "last_error")]
_NEWEST = select(*_ROW).order_by(outbox.c.seq.desc()).limit(NEWEST).subquery()
_OUTBOX = select(_NEWEST.c.queue).distinct()
_LEDGER = select(ledger.c.queue).distinct()
_OF_ITS_KEY = (ledger.c.key == _NEWEST.c.key, ledger.c.type == _NEWEST.c.type)
_HAS_ENDED = select(ledger.c.id).where(*_OF_ITS_KEY, ledger.c.status.in_(["done", "failed"])).exists()
_IS_DISCARDED = func.coalesce(_NEWEST.c.last_error, "").startswith(DISCARDED)
_UNDONE = (
    select(_NEWEST.c.queue, func.count(_NEWEST.c.id.distinct()))
    .where(_NEWEST.c.status == "sent", not_(or_(_HAS_ENDED, _IS_DISCARDED)))
    .group_by(_NEWEST.c.queue)
)


def carriers_known(engine: Engine, adapter: Adapter, *, named: Iterable[str] = ()) -> Sequence[str]:
    """Every carrier that the broker tells of; where it can't list them, those that are `named` or that outbox and ledger know, and that it has.

    Reads the ledger once then: some seconds for millions. Raises Unavailable when database or broker can't be reached.
    """
    if not adapter.capabilities.lists:
        for name in sorted({*named, *transact(reading(engine), _mentioned)}):
            with suppress(ConfigurationError):  # a topic: its groups have carriers of their own; or one that is gone
                adapter.dead_letters(name)
    return adapter.carriers()


def sent_and_gone(engine: Engine, carriers: Collection[str]) -> Mapping[str, int]:
    """Queues to which jobs were sent that have not ended, and which are none of these `carriers` nor a topic of theirs; with how many jobs.

    Only the newest 10,000 rows of the outbox are looked at.
    """
    undone = transact(reading(engine), lambda connection: {queue: count for queue, count in connection.execute(_UNDONE)})  # noqa: C416 - rows
    return {queue: count for queue, count in undone.items() if not any(name == queue or name.startswith(f"{queue}.") for name in carriers)}


def _mentioned(connection: Connection) -> set[str]:
    return {name for statement in (_OUTBOX, _LEDGER) for name in connection.execute(statement).scalars()}
