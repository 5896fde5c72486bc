"""The adapter of `sqlite:`, `postgresql:`, `mysql:` and `mariadb:`: queues in two tables."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import Label, bindparam, func, literal, select, union_all
from sqlalchemy.exc import IntegrityError

from postroom.adapters.declaring import require_consistent
from postroom.adapters.errors import Closed, ConfigurationError
from postroom.adapters.seam import Capabilities
from postroom.adapters.weights import Turns

from . import schema
from .consumer import SqlConsumer
from .dialects import dialect_of
from .due import FAILED_LINES
from .engine import open_engine, prepare, reading, renew_after_fork
from .letters import SqlDeadLetters
from .publishing import publish
from .statements import ABANDON, OLD
from .tables import FAILED, MAX_QUEUE, PENDING, RUNNING, jobs
from .tables import queues as known_queues
from .topology import carrier_names, declare, required
from .transaction import transact
from .types import Key

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy import Connection, Engine

    from postroom.adapters.seam import Consumer, DeadLetters, Hold, Message, Outcome, Queue

__all__ = ["SqlAdapter"]

MAX_NAME = 200

_COUNTED = (PENDING, RUNNING, FAILED)
_MINE = jobs.c.queue == bindparam("carrier", type_=Key(MAX_QUEUE))
_COUNT: Label[int] = func.count().label("count")
_STATUSES = (select(status.label("status"), _COUNT).where(_MINE, jobs.c.status == status) for status in _COUNTED)
_BLOCKED = select(literal("blocked"), _COUNT).where(_MINE, jobs.c.status == PENDING, jobs.c.line.in_(FAILED_LINES)).having(func.count() > 0)
_DEPTH = union_all(*_STATUSES, _BLOCKED)


class SqlAdapter:
    """Queues in a SQL database. See `postroom.adapters.seam.Adapter`.

    Give it a URL, and it opens and closes an engine of its own, with `options` for SQLAlchemy's create_engine; or an Engine of yours, which has its
    own options and stays open (one of SQLite gets real transactions: see `engine.prepare`). The tables must be there: `postroom schema create`.
    Each method is one short transaction; it waits for a busy SQLite file up to 30 s, for a server up to 10 s to connect and about a minute to answer.
    """

    capabilities = Capabilities(
        name="sql", durable=True, shared=True, native_delay=True, atomic_publish=True, clock_leases=True, counts_attempts=True
    )

    def __init__(self, database: str | Engine, options: Mapping[str, object] | None = None) -> None:
        if options and not isinstance(database, str):
            raise ConfigurationError("an engine of yours has its own options")
        self._owns_engine = isinstance(database, str)
        self._engine = open_engine(database, options=options) if isinstance(database, str) else prepare(database)
        if not self._owns_engine:
            renew_after_fork(self._engine)
        self._dialect = dialect_of(self._engine)
        self._consumers: list[SqlConsumer] = []
        self._closed = False

    def ensure(self, queues: Sequence[Queue], *, passive: bool = False) -> None:
        """Declare; see `Adapter.ensure`. Raises SchemaDrift when the tables are not as they should be."""
        require_consistent(queues)
        schema.require(self._open(), (known_queues, jobs))
        work = partial(declare, wanted=queues, passive=passive)
        try:
            transact(self._open(), work)
        except IntegrityError:  # another process declared one of them at the same moment: compare with that
            transact(self._open(), work)

    def prepare(self, queues: Collection[str], *, group: str, passive: bool = False) -> Mapping[str, Hold]:  # noqa: ARG002 - the seam's
        """Nothing to set up, and no limit: leases are extended for as long as a handler runs."""
        return {}

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Publish in one transaction; see `Adapter.publish`. Raises AccessDenied or SchemaDrift: they concern no message."""
        engine = self._open()
        if not messages:
            return []
        outcomes = publish(engine, self._dialect, messages)
        for consumer in self._consumers:
            consumer.wake()
        return outcomes

    def consume(self, queues: Mapping[str, int], *, group: str, prefetch: int, name: str) -> Consumer:  # noqa: ARG002 - a group has a carrier here
        """Subscribe; see `Adapter.consume`."""
        if not queues or prefetch < 1 or not 1 <= len(name) <= MAX_NAME:
            raise ConfigurationError(f"consume: give queues, a prefetch of 1 or more and a name of 1 to {MAX_NAME} characters")
        carriers = transact(reading(self._open()), partial(required, names=queues))
        consumer = SqlConsumer(self._engine, self._dialect, carriers, Turns(queues), prefetch=prefetch, name=name)
        self._consumers = [*(other for other in self._consumers if not other.closed), consumer]
        return consumer

    def dead_letters(self, queue: str) -> DeadLetters:
        """The dead letters of one carrier; see `DeadLetters`. Raises ConfigurationError when it is not declared."""
        carrier = transact(reading(self._open()), partial(required, names=[queue]))[queue]
        return SqlDeadLetters(self._engine, queue, carrier.topic or queue)

    def abandon(self, name: str) -> int:
        """Hand back what the consumers of this name hold; see `Adapter.abandon`."""
        return transact(self._open(), lambda connection: connection.execute(ABANDON, {"holder": name}).rowcount)

    def carriers(self) -> Sequence[str]:
        """All that were ever declared, by anyone."""
        return transact(reading(self._open()), carrier_names)

    def depth(self, queue: str) -> Mapping[str, int]:
        """Count by status, but for those that are done; `blocked`, if any, are those pending whose line a failed job holds."""
        rows = transact(reading(self._open()), lambda connection: connection.execute(_DEPTH, {"carrier": queue}).all())
        return {status: count for status, count in rows}  # noqa: C416 - rows are no tuples to a type checker

    def tidy(self, *, older_than: float, limit: int = 1000) -> int:
        """Remove jobs that are done; see `Adapter.tidy`."""
        return transact(self._open(), partial(self._tidy, older_than=older_than, limit=limit))

    def close(self) -> None:
        """Close the consumers, and the engine if it is the adapter's own."""
        self._closed = True
        for consumer in self._consumers:
            consumer.close()
        if self._owns_engine:
            self._engine.dispose()

    def _tidy(self, connection: Connection, *, older_than: float, limit: int) -> int:
        seqs = [*connection.scalars(OLD, {"age": older_than, "most": limit})]
        return connection.execute(self._dialect.statements.remove, {"seqs": seqs}).rowcount if seqs else 0

    def _open(self) -> Engine:
        if self._closed:
            raise Closed("this adapter is closed")
        return self._engine
