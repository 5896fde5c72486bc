"""A stage for crashes: a database, queues on a real broker, workers that are killed by a plan, and a look at what became of the jobs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import select

from postroom.adapters.seam import Queue
from postroom.consumers.ledger.tables import ledger
from postroom.outbox import Outbox, Relay
from postroom.outbox.tables import outbox
from support.workers import APPS, Place, drained, ended, eventually, place, supervisor

__all__ = ["SLACK", "Broker", "Crash", "Layout", "Point", "Scene", "scene"]

VICTIM = "victim"
SLACK = 30.0
"""Seconds that a slow machine may need to start a process and have it join its group."""
LONG_LEASE, SHORT_LEASE = 3600.0, 3.0
"""Of the ledger and of relays, in seconds. The long one where somebody sees the end of a process, so that nothing may wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """`redelivery`: the most seconds that it takes to notice a dead consumer, by its configuration in these tests.

    `in_rounds`: a consumer gets no more before all that came with a job is settled.
    """

    name: str
    fixture: str
    url: str
    redelivery: float
    in_rounds: bool = False

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Who works, and how: `consumers` processes; with `prefetched` each with several lanes, looking ahead."""

    database: str
    consumers: int
    prefetched: bool

    def __str__(self) -> str:
        return f"{self.database}, {self.consumers} consumer{'s' * (self.consumers > 1)}, {'prefetched' if self.prefetched else 'single'}"

    @property
    def settings(self) -> Mapping[str, Any]:
        if self.prefetched:  # the long round lets lanes look ahead on a slow machine too
            return {"concurrency": 3, "prefetch": 50, "look_ahead": 16, "round_budget": 0.4}
        return {"concurrency": 1, "prefetch": 1, "look_ahead": 1}

    @property
    def company(self) -> int:
        """How many jobs the victim's process holds when it dies; of them at most one in each lane runs."""
        return 5 if self.prefetched else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Where the victim is killed, and what must become of it: so many attempts, and a status. `again`: what its second delivery leads to first."""

    name: str
    fate: Mapping[str, bool] = field(default_factory=dict)
    attempts: int = 0
    status: str = "done"
    again: str = "received"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """One process, or with `family` its supervisor too, is killed at a point."""

    point: Point
    broker: Broker
    layout: Layout
    family: bool = False

    def __str__(self) -> str:
        return f"{self.point}{', whole family' * self.family}-{self.broker}-{self.layout}"


class Scene:
    """What a test does to it, and sees of it."""

    def __init__(self, here: Place, crash: Crash, queue: Queue) -> None:
        self.here = here
        self.crash = crash
        self.queue = queue
        self.keys: list[str] = []
        self._outbox = Outbox(queue=queue)

    def __repr__(self) -> str:
        """What a test that waits in vain waits for."""
        states = Counter(row.status for row in self.entries().values())
        unknown, hands = sorted(set(self.keys) - set(self.entries())), dict(self._in_hand())
        return f"<{self.crash}: killed {self.killed}, ledger {dict(states)} without {unknown}, depth {dict(self.depth)}, in hand {hands}>"

    def enqueue(self, keys: Iterable[str], **fate: bool) -> None:
        """Jobs of one transaction, in this order."""
        with self.here.engine.begin() as connection:
            for key in keys:
                self._outbox.enqueue(connection, "job", fate, key=key)
                self.keys.append(key)

    def publish(self) -> None:
        """All that is enqueued, from here."""
        Relay(self.here.engine, self.here.adapter).drain()

    @contextmanager
    def workers(self) -> Iterator[Sequence[subprocess.Popen[str]]]:
        """As many consumers as the layout says, each having asked for jobs: children of one supervisor, or of one each if it dies with its child."""
        crash, count = self.crash, self.crash.layout.consumers
        families, children = (count, 1) if crash.family else (1, count)
        with ExitStack() as stack:
            started = [stack.enter_context(self.family(children)) for _ in range(families)]
            eventually(lambda: self.ready >= count)
            yield started

    @contextmanager
    def family(self, children: int = 1) -> Iterator[subprocess.Popen[str]]:
        """One supervisor with its children."""
        lease = SHORT_LEASE if self.crash.family else LONG_LEASE
        relay = {"lease": lease, "poll_max": 0.1}
        with supervisor(self.here, "doomed:jobs", processes=children, lease=lease, relay=relay, **self.crash.layout.settings) as process:
            yield process

    @property
    def ready(self) -> int:
        """How many worker processes have ever asked for jobs."""
        return len(list(self.here.flags.glob("ready-*")))

    def relay(self, *, batch: int, lease: float) -> int:
        """Run a relay until it ends; return how it ended."""
        command = [sys.executable, "doomed_relay.py", self.here.url, self.here.broker, str(batch), str(lease)]
        environment = {"APP_FLAGS": str(self.here.flags)}
        with self.here.log.open("a") as log:
            return subprocess.run(command, cwd=APPS, env=environment, stderr=log, check=False, timeout=60).returncode

    def stop(self, supervisors: Iterable[subprocess.Popen[str]]) -> None:
        """In good order, those that live. What their processes held and had not done by then, another one does."""
        alive = [process for process in supervisors if process.poll() is None]
        for process in alive:
            process.send_signal(signal.SIGTERM)
        for process in alive:
            ended(process, self.here)
        if self.depth["pending"]:
            drained(self.here, "doomed:jobs", lease=SHORT_LEASE, relay={"lease": SHORT_LEASE}, broker=self.here.broker)

    @property
    def depth(self) -> Mapping[str, int]:
        return self.here.depth(self.queue.name)

    @property
    def journal(self) -> list[dict[str, Any]]:
        """All that the processes have noted."""
        path = self.here.flag("journal")
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def killed(self) -> dict[str, Any] | None:
        """The line of the process that was killed; there is never a second one."""
        lines = [line for line in self.journal if line["what"] == "killed"]
        assert len(lines) <= 1
        return lines[0] if lines else None

    def of_the_victim(self) -> list[dict[str, Any]]:
        """The lines about the victim's message; not about a retry's."""
        return [line for line in self.journal if line.get("key") == VICTIM and not line.get("copy")]

    def after_the_kill(self, what: str) -> float | None:
        """How many seconds later another process met the victim's message again; None when none has yet."""
        killed = self.killed
        assert killed is not None
        others = (line for line in self.of_the_victim() if line["what"] == what and line["pid"] != killed["pid"])
        return next((line["at"] - killed["at"] for line in others if line["at"] >= killed["at"]), None)

    def is_over(self) -> bool:
        """Whether each job has ended, the victim's message has come again, all is sent, and nobody has anything in hand; twice in a row."""
        return self._is_over() and not time.sleep(0.3) and self._is_over()

    def _is_over(self) -> bool:
        ended_all = set(self.entries()) == set(self.keys) and all(row.status in {"done", "failed"} for row in self.entries().values())
        at_rest = not (self.left_in_the_outbox() or self.depth["pending"] or self._in_hand())
        return ended_all and self.after_the_kill("received") is not None and at_rest

    def _in_hand(self) -> Counter[str]:
        """What the living have received and not settled."""
        hands = Counter[str]()
        for line in self.journal:
            if Path("/proc", str(line["pid"])).exists():
                hands.update([line["key"]] if line["what"] == "received" else ())
                hands.subtract(line["keys"] if line["what"] == "settled" else ())
        return +hands

    def entries(self) -> Mapping[str, Any]:
        """The ledger's rows by key."""
        with self.here.engine.connect() as connection:
            return {row.key: row for row in connection.execute(select(ledger))}

    def effects(self) -> Counter[str]:
        """How often each key's effect was had."""
        return Counter(key for (key,) in self.here.rows("SELECT key FROM effects"))

    def left_in_the_outbox(self) -> Sequence[Any]:
        """Rows that are not sent."""
        with self.here.engine.connect() as connection:
            return connection.execute(select(outbox.c.key, outbox.c.status).where(outbox.c.status != "sent")).all()

    def chargeable(self) -> set[str]:
        """Jobs that may have to pay for the kill: those that ran in that process; with its supervisor dead, all that it had begun."""
        killed = self.killed
        assert killed is not None
        mine = [line for line in self.journal if line["pid"] == killed["pid"]]
        ended_there = {key for (key,) in self.here.rows("SELECT key FROM effects WHERE pid = :pid", pid=killed["pid"])}
        starts = {line["key"] for line in mine if line["what"] == "starts"}
        begins = {key for line in mine if line["what"] == "begins" for key in line["keys"]}
        return (starts | begins if self.crash.family else starts) - ended_there

    @property
    def starts(self) -> Counter[str]:
        """How often each job was started."""
        return Counter(line["key"] for line in self.journal if line["what"] == "starts")


@contextmanager
def scene(crash: Crash, database: str, server: str, flags: Path, forget: Callable[[str, str], None]) -> Iterator[Scene]:
    """All that a crash needs, in an empty database and a queue of its own; `forget` takes the broker's URL and the queue's name at the end."""
    name = f"crash-{uuid.uuid4().hex[:12]}"
    plan = {"queue": name, "point": crash.point.name, "victim": VICTIM, "company": crash.layout.company, "family": crash.family}
    flags.mkdir()
    (flags / "plan").write_text(json.dumps(plan))
    broker = crash.broker.url.format(server=server)
    with place(database, flags, broker=broker) as here:
        queue = Queue(name=name, lease=15.0)
        here.adapter.ensure([queue])
        yield Scene(here, crash, queue)
    forget(broker, name)
