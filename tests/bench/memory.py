"""Whether the relay's and the worker's memory stays flat, whatever waits; and the relay's rate, whatever was sent before."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from brokers import message, opened, publish
from pairs import Pair, measure
from relay import empty, fill, relay_rate
from sqlalchemy import Engine, text

from postroom.adapters.sql.engine import open_engine
from postroom.adapters.sql.schema import create

WAITING = int(os.environ.get("POSTROOM_BENCH_WAITING", "1000000"))
SENT = int(os.environ.get("POSTROOM_BENCH_SENT", "10000000"))
WAITING_IN_RABBITMQ = int(os.environ.get("POSTROOM_BENCH_WAITING_IN_RABBITMQ", "100000"))
APPLICATION = "support.no_op:jobs"
QUEUE, TYPE = "emails", "send-receipt"
SECONDS = 60.0
ROWS = 20_000

_SENT = """
INSERT INTO postroom_outbox
    (id, queue, type, key, ordering_key, lane, ordered, body, headers, status, enqueued_at, available_at, attempts, sent_at)
SELECT lpad(to_hex(n), 32, '0'), 'emails', 'send-receipt', 'old-' || n, 'old-' || n, n % 64, false, '{}', '{}',
       'sent', 1, 1, 0, extract(epoch FROM now())
FROM generate_series(1, :rows) AS n
"""


def report(database: str, other: str) -> None:
    """In the database alone: a million rows waiting, and ten million that were sent."""
    engines = open_engine(database), open_engine(other)
    for engine in engines:
        create(engine)
    empty(engines[0])
    fill(engines[0], WAITING)
    for role in ("relay", "worker"):
        _show(role, WAITING, database, database, SECONDS)
    _with_sent(*engines)


def report_rabbitmq(database: str, broker: str) -> None:
    """A hundred thousand in the outbox for the relay, then as many on the broker for the worker."""
    _with_broker(database, broker, WAITING_IN_RABBITMQ, SECONDS / 4)


def report_kafka(database: str, servers: str) -> None:
    """A million of each, in both modes."""
    _with_broker(database, f"kafka://{servers}?partitions=4", WAITING, SECONDS)
    _show("worker", WAITING, database, f"kafka://{servers}?partitions=4&mode=share", SECONDS)


def _with_broker(database: str, broker: str, waiting: int, seconds: float) -> None:
    engine = open_engine(database)
    create(engine)
    with opened(broker, QUEUE) as adapter:
        fill(engine, waiting)
        _show("relay", waiting, database, broker, seconds)
        empty(engine)
        publish(adapter, (message(number, QUEUE, TYPE) for number in range(waiting)))
        _show("worker", waiting, database, broker, seconds)


def _show(role: str, waiting: int, database: str, broker: str, seconds: float) -> None:
    """A process of its own for so long, with a backlog that it hardly finishes."""
    command = ["relay"] if role == "relay" else ["work", APPLICATION, "--processes", "1"]
    peaks = _peaks(["postroom", "--database", database, "--broker", broker, *command], seconds)
    share = " (share)" if "mode=share" in broker else ""
    name = f"{role}, {broker.partition(':')[0]}{share}, {waiting:,} waiting"
    print(f"{name:<50} {peaks[0]:>10.0f} MB after {seconds / 4:.0f} s, {peaks[-1]:.0f} MB after {seconds:.0f} s", flush=True)


def _with_sent(full: Engine, fresh: Engine) -> None:
    """The relay in a table with so many sent rows, in turns with the same relay in an empty one."""
    empty(full)
    with full.begin() as connection:
        connection.execute(text(_SENT), {"rows": SENT})
    pair = Pair(
        name=f"relay, {SENT:,} sent rows / none",
        unit="rows/s",
        goal=">= 0.9",
        ours=lambda: relay_rate(full, ROWS, keep=True),
        plain=lambda: relay_rate(fresh, ROWS),
    )
    print(measure(pair, 5).line)


def _peaks(command: list[str], seconds: float) -> list[float]:
    """The greatest resident memory (MB) of any one process of this command, at four times in so many seconds."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen([str(Path(sys.executable).parent / command[0]), *command[1:]], env=environment, stderr=subprocess.DEVNULL) as process:
        peaks = []
        for _ in range(4):
            time.sleep(seconds / 4)
            assert process.poll() is None, "it has ended early"
            peaks.append(max(_peak(pid) for pid in (process.pid, *_children(process.pid))))
        process.terminate()
    return peaks


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _peak(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0
