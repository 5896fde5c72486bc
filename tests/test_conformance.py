"""The conformance suite on the backends that need no broker. A harness is all that a new backend adds."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, update

from postroom.adapters import conformance, connect
from postroom.adapters.memory import Memory
from postroom.adapters.sql.engine import engine_url
from postroom.adapters.sql.metadata import metadata
from postroom.adapters.sql.tables import jobs

if TYPE_CHECKING:
    from postroom.adapters.seam import Adapter


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
