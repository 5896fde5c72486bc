"""SQL brokers for tests: a database with the tables, an adapter on it, and a look at what became of the jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, Row, select

from postroom.adapters.seam import Consumer, Message, Queue, Verdict
from postroom.adapters.sql import schema
from postroom.adapters.sql.adapter import SqlAdapter
from postroom.adapters.sql.engine import open_engine
from postroom.adapters.sql.tables import jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A database with the tables, an engine of the test's own on it, and an adapter with another one."""

    url: str
    engine: Engine
    adapter: SqlAdapter

    def publish(self, *ids: str, queue: str = "emails", key: str | None = None, **how: Any) -> None:
        messages = [Message(id=job_id, queue=queue, body=b"{}", ordering_key=key, **how) for job_id in ids]
        outcomes = self.adapter.publish(messages)
        assert [outcome.verdict for outcome in outcomes] == [Verdict.CONFIRMED] * len(ids), outcomes

    def consumer(self, *queues: str, name: str = "worker", prefetch: int = 100) -> Consumer:
        return self.adapter.consume(dict.fromkeys(queues or ("emails",), 1), group="test", prefetch=prefetch, name=name)

    def rows(self) -> Mapping[str, Row[Any]]:
        """All jobs, by their ids."""
        with self.engine.connect() as connection:
            return {row.id: row for row in connection.execute(select(jobs).order_by(jobs.c.seq))}


@contextmanager
def broker_at(url: str, *queues: Queue) -> Iterator[Broker]:
    """A broker on the database of this URL, with these queues declared, or with `emails`."""
    engine = open_engine(url)
    schema.create(engine)
    adapter = SqlAdapter(url)
    try:
        adapter.ensure(queues or [Queue(name="emails")])
        yield Broker(url=url, engine=engine, adapter=adapter)
    finally:
        adapter.close()
        engine.dispose()
