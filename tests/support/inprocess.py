"""Workers inside the test's own process: quick, and every part within reach."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sqlalchemy import Column, Engine, Integer, MetaData, Row, String, Table, insert, select

from postroom.adapters.seam import Adapter, DeadLetter, Message
from postroom.adapters.sql import schema
from postroom.adapters.sql.engine import open_engine
from postroom.consumers import Backoff, DeadLetterOffice, Jobs, Report, Stop, Worker, WorkerSettings
from postroom.consumers.ledger.tables import ledger
from postroom.outbox import Outbox
from postroom.outbox.options import RelayOptions

from .brokers import IN_PROCESS, connected_to
from .works import delivery_of

SOON = Backoff(first=0.02, cap=0.1)
EAGER = RelayOptions(poll_min=0.01, poll_max=0.05)

effects = Table("effects", MetaData(), Column("id", Integer, primary_key=True), Column("key", String(100), nullable=False))


@dataclass(frozen=True, kw_only=True)
class Office:
    """A database for outbox and ledger, queues on `adapter`, and the handlers that a test declares on `jobs`. `name` is the queue's."""

    engine: Engine
    adapter: Adapter
    name: str = "q"
    jobs: Jobs = field(default_factory=Jobs)

    @cached_property
    def outbox(self) -> Outbox:
        return Outbox(queue=self.name)

    def enqueue(self, type_: str, key: str, payload: object = None, **how: Any) -> str:
        with self.engine.begin() as connection:
            return self.outbox.enqueue(connection, type_, {} if payload is None else payload, key=key, **how)

    def enqueue_all(self, *keys: str, **how: Any) -> list[str]:
        """Enqueue jobs of type `t` in one transaction; return their ids."""
        with self.engine.begin() as connection:
            return [self.outbox.enqueue(connection, "t", {}, key=key, **how) for key in keys]

    def publish(self, *messages: Message) -> None:
        """Put messages onto the queue as they are, past the outbox."""
        self.adapter.ensure(list(self.jobs.queues.values()))
        self.adapter.publish(messages)

    def publish_raw(self, body: bytes, **headers: Any) -> None:
        """A message that somebody else has sent."""
        self.publish(Message(id=f"raw-{body[:8].hex()}-{time.monotonic_ns()}", queue=self.name, body=body, headers=headers))

    def publish_job(self, key: str, body: bytes = b"{}", *, job_id: str = "") -> None:
        """A job past the outbox: perhaps with a body that it would not have let through, perhaps once more."""
        self.publish(delivery_of(key, queue=self.name, body=body, job_id=job_id).message)

    def worker(self, **settings: Any) -> Worker:
        return Worker(self.jobs, self.engine, self.adapter, WorkerSettings(**{"relay": EAGER, "concurrency": 4, "grace": 30.0, **settings}))

    def drain(self, **settings: Any) -> Report:
        """Work until all is quiet."""
        return self.worker(drain=True, **settings).run(Stop())

    def entry(self, key: str) -> Row[Any]:
        """The ledger's row of `key`."""
        with self.engine.connect() as connection:
            return connection.execute(select(ledger).where(ledger.c.key == key)).one()

    def entries(self) -> list[Row[Any]]:
        with self.engine.connect() as connection:
            return list(connection.execute(select(ledger)))

    def letters(self, queue: str = "") -> Mapping[str, DeadLetter]:
        """The dead letters of a queue, by message id."""
        return {letter.message.id: letter for letter in self.adapter.dead_letters(queue or self.name).list()}

    @property
    def dead_letter_office(self) -> DeadLetterOffice:
        """As `postroom dead` is for a person."""
        return DeadLetterOffice(self.jobs, self.engine, self.adapter)

    def effects(self) -> list[str]:
        """The keys of all effects, in order."""
        with self.engine.connect() as connection:
            return list(connection.execute(select(effects.c.key).order_by(effects.c.id)).scalars())


def effect(key: str) -> Any:
    """The statement that has the effect of `key`."""
    return insert(effects).values(key=key)


@contextmanager
def office(database: str, adapter: Adapter, *, name: str = "q") -> Iterator[Office]:
    engine = open_engine(database, pool_size=20)
    schema.create(engine)
    effects.metadata.create_all(engine)
    yield Office(engine=engine, adapter=adapter, name=name)
    adapter.close()
    engine.dispose()


@contextmanager
def office_on(kind: str, fixture: Callable[[str], Any]) -> Iterator[Office]:
    """A queue of its own on this kind of broker (see `connected_to`); outbox and ledger on SQLite."""
    name = "q" if kind in IN_PROCESS else f"jobs-{uuid.uuid4().hex[:8]}"
    with connected_to(kind, fixture) as adapter, office(fixture("sqlite_database_url"), adapter, name=name) as made:
        yield made


@dataclass(slots=True)
class Shift:
    """A worker at work. `report` is there when it has ended."""

    worker: Worker
    stop: Stop
    report: Report | None = None


@contextmanager
def working(worker: Worker) -> Iterator[Shift]:
    """Let `worker` work meanwhile; at the end it drains, if the test has not stopped it."""
    shift = Shift(worker, Stop())

    def run() -> None:
        shift.report = worker.run(shift.stop)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield shift
    finally:
        if not shift.stop.asked.is_set():
            shift.stop.ask()
        thread.join(60)
    assert not thread.is_alive()
    assert shift.report is not None
