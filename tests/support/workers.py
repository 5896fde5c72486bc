"""Workers for tests: real processes with a supervisor, a database with everything in it, and a look at what became of the jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, Row, select, text

from postroom.adapters.connect import connect
from postroom.adapters.seam import Adapter
from postroom.adapters.sql import schema
from postroom.adapters.sql.engine import open_engine
from postroom.consumers.ledger.tables import ledger
from postroom.outbox import Outbox

APPS = Path(__file__).parents[1] / "apps"
PATIENCE = 60.0
"""How long (seconds) a test waits for what must happen: far longer than it takes, so that only a fault runs into it."""


def eventually(holds: Callable[[], Any]) -> Any:
    """Wait until `holds()` is true, and return what it said."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := holds()):
        if time.monotonic() > deadline:
            raise AssertionError(f"it did not happen within {PATIENCE} s: {holds}")
        time.sleep(0.02)
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One database for outbox, ledger and, unless there is a broker, queues; and the flags by which a test and its handlers talk."""

    url: str
    flags: Path
    engine: Engine
    adapter: Adapter
    broker: str
    outbox: Outbox = field(default_factory=lambda: Outbox(queue="work"))

    def enqueue(self, type_: str, key: str, payload: object = None, **how: Any) -> str:
        with self.engine.begin() as connection:
            return self.outbox.enqueue(connection, type_, {} if payload is None else payload, key=key, **how)

    def effects(self, key: str) -> int:
        """How often the effect of `key` was had."""
        return len(self.rows("SELECT attempt FROM effects WHERE key = :key", key=key))

    def entry(self, key: str) -> Row[Any]:
        """The ledger's row of `key`."""
        with self.engine.connect() as connection:
            return connection.execute(select(ledger).where(ledger.c.key == key)).one()

    def rows(self, query: str, **values: Any) -> list[Row[Any]]:
        with self.engine.connect() as connection:
            return list(connection.execute(text(query), values).all())

    def depth(self, queue: str = "work") -> Mapping[str, int]:
        return self.adapter.depth(queue)

    @property
    def log(self) -> Path:
        """What the processes said."""
        return self.flags / "log"

    def says(self, words: str) -> bool:
        """Whether a process has said this."""
        return words in self.log.read_text()

    def flag(self, name: str) -> Path:
        return self.flags / name


@contextmanager
def place(url: str, flags: Path, *, broker: str = "") -> Iterator[Place]:
    """Make all tables in the database of this URL."""
    sys.path.insert(0, str(APPS))
    from effects import effects  # noqa: PLC0415 - the applications' own module

    engine, adapter = open_engine(url), connect(broker or url)
    schema.create(engine)
    effects.metadata.create_all(engine)
    yield Place(url=url, flags=flags, engine=engine, adapter=adapter, broker=broker or url)
    adapter.close()
    engine.dispose()


@contextmanager
def supervisor(at: Place, app: str = "mortal:jobs", *, processes: int = 1, broker: str = "", **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """A supervisor in a process of its own, with real children; killed at the end if it still runs."""
    options = {"app": app, "database": at.url, "broker": broker or at.broker, "processes": processes, "settings": settings}
    environment = {**os.environ, "APP_DATABASE": at.url, "APP_FLAGS": str(at.flags)}
    with at.log.open("a") as log:
        command = [sys.executable, "supervise.py", json.dumps(options)]
        process = subprocess.Popen(command, cwd=APPS, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        yield process
    finally:
        left = [process.pid, *children_of(process.pid)]
        for process_id in left:
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        process.communicate()


def children_of(process_id: int) -> list[int]:
    """The worker processes of a supervisor that runs."""
    try:
        return [int(child) for child in Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()]
    except FileNotFoundError:
        return []


def drained(at: Place, app: str = "mortal:jobs", **options: Any) -> Mapping[str, Any]:
    """Work until all is quiet; return the supervisor's report."""
    with supervisor(at, app, drain=True, **options) as process:
        return ended(process, at)


def ended(process: subprocess.Popen[str], at: Place) -> Mapping[str, Any]:
    """Wait for its orderly end; return its report."""
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, at.log.read_text()
    report: Mapping[str, Any] = json.loads(said)
    return report
