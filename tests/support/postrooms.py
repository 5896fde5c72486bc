"""A whole Postroom for tests of what operators do: database, broker, handlers that fail until they are mended, and a worker in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from sqlalchemy import Engine, select, update

import postroom.consumers.tables  # noqa: F401 - all of them
from postroom.adapters.connect import connect
from postroom.adapters.seam import Adapter
from postroom.adapters.sql import schema
from postroom.adapters.sql.engine import open_engine
from postroom.consumers import Context, Fail, Jobs, Report, Stop, Worker, WorkerSettings
from postroom.consumers.dead import Letter, Place, Selection, letters, places
from postroom.consumers.entries import entries
from postroom.consumers.ledger import Ledger
from postroom.consumers.ledger.entry import Entry
from postroom.consumers.worker import receiver, worker
from postroom.outbox import Outbox
from postroom.outbox.tables import outbox

EVERYTHING = Selection()


@dataclass(slots=True, kw_only=True)
class Postroom:
    """One queue, `emails`, with jobs of type `send`; `broken` maps keys to the error of their handler, until a test mends it."""

    engine: Engine
    adapter: Adapter
    outbox: Outbox = field(default_factory=lambda: Outbox(queue="emails"))
    broken: dict[str, str] = field(default_factory=dict)
    runs: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)

    @property
    def jobs(self) -> Jobs:
        jobs = Jobs()

        @jobs.handler("send", queue="emails", max_attempts=1)
        def send(payload: Any, context: Context) -> None:
            self.runs[context.job.key] += 1
            if error := self.broken.get(context.job.key):
                raise Fail(error)
            self.sent[context.job.key] += 1

        return jobs

    def enqueue(self, *keys: str, type_: str = "send", payload: object = None) -> None:
        with self.engine.begin() as connection:
            for key in keys:
                self.outbox.enqueue(connection, type_, payload, key=key)

    def drain(self) -> Report:
        """Work until all is quiet."""
        return Worker(self.jobs, self.engine, self.adapter, WorkerSettings(concurrency=2, drain=True)).run(Stop())

    def kill_jobs(self, *keys: str, error: str = "no mail server", **how: Any) -> None:
        """Have a job of each key given up with this error; then mend what broke it."""
        self.broken |= dict.fromkeys(keys, error)
        self.enqueue(*keys, **how)
        self.drain()
        self.broken.clear()
        self.runs.clear()

    def park(self, key: str, reason: str) -> None:
        """As a relay does when the broker refuses the row of this key."""
        with self.engine.begin() as connection:
            connection.execute(update(outbox).where(outbox.c.key == key).values(status="parked", attempts=1, last_error=reason))

    @property
    def places(self) -> list[Place]:
        return list(places(self.engine, self.adapter, ["emails"]))

    def dead(self, selection: Selection = EVERYTHING) -> list[tuple[Place, Letter]]:
        return list(letters(self.places, selection))

    @property
    def dead_keys(self) -> list[str]:
        return [letter.envelope.key if letter.envelope else "?" for _, letter in self.dead()]

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.engine, worker="an operator", lease=30.0, native_delay=self.adapter.capabilities.native_delay)

    def entry(self, key: str) -> Entry:
        [entry] = entries(self.engine, key)
        return entry

    def outbox_statuses(self) -> Mapping[str, str]:
        with self.engine.connect() as connection:
            return {row.key: row.status for row in connection.execute(select(outbox.c.key, outbox.c.status))}


@contextmanager
def postroom_at(database: str, broker: str) -> Iterator[Postroom]:
    """In an empty database; `broker` may be the same."""
    engine, adapter = open_engine(database, pool_size=8), connect(broker)
    schema.create(engine)
    room = Postroom(engine=engine, adapter=adapter)
    adapter.ensure(list(room.jobs.queues.values()))
    with patch.object(receiver, "POLL", 0.05), patch.object(worker, "GLANCE", 0.02):  # a test drains often, and has no second to wait each time
        yield room
    adapter.close()
    engine.dispose()
