"""The conformance suite on the backends that need no broker. A harness is all that a new backend adds."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from sqlalchemy import create_engine, update

from postroom.adapters import conformance, connect
from postroom.adapters.memory import Memory
from postroom.adapters.sql.engine import engine_url
from postroom.adapters.sql.metadata import metadata
from postroom.adapters.sql.tables import jobs
from support.proxy import Proxy
from support.rabbit import raw

if TYPE_CHECKING:
    from postroom.adapters.seam import Adapter, Queue


class MemoryHarness(conformance.Harness):
    """One Memory, whose clock the suite moves."""

    silence = 0.01

    def __init__(self, *, native_delay: bool = True) -> None:
        self._passed = 0.0
        self._ticks = itertools.count()
        self._memory = Memory(clock=self._now, native_delay=native_delay)

    def adapter(self) -> Memory:
        return self._memory

    def advance(self, seconds: float) -> None:
        self._passed += seconds

    def _now(self) -> float:
        return 1_800_000_000.0 + self._passed + next(self._ticks) / 1e6


class SqlHarness(conformance.Harness):
    """One empty database; time passes by making every job older."""

    silence = 0.05

    def __init__(self, url: str) -> None:
        self._url = url
        self._adapters: list[Adapter] = []
        self._engine = create_engine(engine_url(url))
        metadata.create_all(self._engine)

    @property
    def url(self) -> str:
        return self._url

    def adapter(self) -> Adapter:
        self._adapters.append(connect(self._url))
        return self._adapters[-1]

    def restart(self) -> Adapter:
        """Nothing of the old adapter is used again; what it held is not handed back, as after a crash."""
        return self.adapter()

    def advance(self, seconds: float) -> None:
        times = (jobs.c.due_at, jobs.c.available_at, jobs.c.lease_until, jobs.c.taken_at, jobs.c.finished_at)
        with self._engine.begin() as connection:
            connection.execute(update(jobs).values({time: time - seconds for time in times}))

    def close(self) -> None:
        for adapter in self._adapters:
            adapter.close()
        self._engine.dispose()


class RabbitHarness(conformance.Harness):
    """One server for all tests, behind a network that can be cut."""

    silence = 0.3

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._proxy = Proxy(parts.port or 0)
        self._proxy.__enter__()
        self._url = url.replace(f":{parts.port}", f":{self._proxy.port}")
        self._adapters: list[Adapter] = []

    @property
    def url(self) -> str:
        return self._url

    def adapter(self) -> Adapter:
        self._adapters.append(connect(self._url))
        return self._adapters[-1]

    def restart(self) -> Adapter:
        """Cut every connection. What was told the server before, it has heard: it answers a question that was put on the same connections."""
        for adapter in self._adapters:
            adapter.depth("anything")
        self._proxy.cut()
        return self.adapter()

    def close(self) -> None:
        """Leave no queue behind: each has files open on the server."""
        for adapter in self._adapters:
            adapter.close()
        names = {name for adapter in self._adapters for name in adapter.carriers()}
        with raw(self._url) as channel:
            for queue in (f"{name}{part}" for name in names for part in ("", ".dlq", *(f"#{number}" for number in range(8)))):
                channel.queue_delete(queue)
        self._proxy.__exit__()


class KafkaHarness(conformance.Harness):
    """One cluster for all tests. A restart ends every client; what the server itself keeps is for the crash tests."""

    silence = 0.3
    options = "partitions=1&session.timeout.ms=6000&heartbeat.interval.ms=100"  # with one partition it is known who gets the jobs

    def __init__(self, bootstrap: str) -> None:
        self._url = f"kafka://{bootstrap}?{self.options}"
        self._adapters: list[Adapter] = []

    @property
    def url(self) -> str:
        return self._url

    def adapter(self) -> Adapter:
        self._adapters.append(connect(self._url))
        return self._adapters[-1]

    def restart(self) -> Adapter:
        self.close()
        return self.adapter()

    def close(self) -> None:
        for adapter in self._adapters:
            adapter.close()


class ShareHarness(KafkaHarness):
    """A share group."""

    options = "mode=share&partitions=1&statistics.interval.ms=100"
    difference = ("dead_letter", "'graves'")

    def differently(self, queue: Queue) -> Queue:
        return replace(queue, dead_letter="graves")


class TestMemory(conformance.Suite):
    """`memory:` as it is."""

    @pytest.fixture
    def harness(self) -> MemoryHarness:
        return MemoryHarness()


class TestMemoryAsABroker(conformance.Suite):
    """A Memory that can't hold a job back, as RabbitMQ and Kafka can't."""

    @pytest.fixture
    def harness(self) -> MemoryHarness:
        return MemoryHarness(native_delay=False)


class TestSql(conformance.Suite):
    """SQLite, PostgreSQL and MariaDB."""

    @pytest.fixture
    def harness(self, database_url: str) -> SqlHarness:
        return SqlHarness(database_url)


class TestRabbitMQ(conformance.Suite):
    """Quorum queues."""

    @pytest.fixture
    def harness(self, rabbitmq_url: str) -> RabbitHarness:
        return RabbitHarness(rabbitmq_url)


class TestKafka(conformance.Suite):
    """A classic group."""

    @pytest.fixture
    def harness(self, kafka_bootstrap: str) -> KafkaHarness:
        return KafkaHarness(kafka_bootstrap)


class TestKafkaShare(conformance.Suite):
    """A share group."""

    @pytest.fixture
    def harness(self, kafka_bootstrap: str) -> ShareHarness:
        return ShareHarness(kafka_bootstrap)
