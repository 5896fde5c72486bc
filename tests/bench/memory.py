"""Whether the relay's and the worker's memory and rate stay flat: a million rows waiting, ten million sent rows in the table."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from pairs import Pair, measure
from relay import empty, fill, relay_rate
from sqlalchemy import Engine, text

from postroom.adapters.sql.engine import open_engine
from postroom.adapters.sql.schema import create

WAITING = int(os.environ.get("POSTROOM_BENCH_WAITING", "1000000"))
SENT = int(os.environ.get("POSTROOM_BENCH_SENT", "10000000"))
APPLICATION = "support.no_op:jobs"
SECONDS = 60
ROWS = 20_000

_SENT = """
INSERT INTO postroom_outbox
    (id, queue, type, key, ordering_key, lane, ordered, body, headers, status, enqueued_at, available_at, attempts, sent_at)
SELECT lpad(to_hex(n), 32, '0'), 'emails', 'send-receipt', 'old-' || n, 'old-' || n, n % 64, false, '{}', '{}',
       'sent', 1, 1, 0, extract(epoch FROM now())
FROM generate_series(1, :rows) AS n
"""


def report(database: Callable[[], AbstractContextManager[str]]) -> None:
    with database() as url, database() as other:
        engines = open_engine(url), open_engine(other)
        for engine in engines:
            create(engine)
        _with_waiting(engines[0], url)
        _with_sent(*engines)


def _with_waiting(engine: Engine, url: str) -> None:
    """The relay into an SQL queue, and the worker behind it, each a process, for a minute of a backlog that it can't finish."""
    empty(engine)
    fill(engine, WAITING)
    for name, command in {"relay": ["relay"], "worker": ["work", APPLICATION, "--processes", "1"]}.items():
        peaks = _peaks(["postroom", "--database", url, "--broker", url, *command])
        print(f"{f'{name}, {WAITING:,} rows waiting':<46} {peaks[0]:>10.0f} MB after a quarter of a minute, {peaks[-1]:.0f} MB after a minute")


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


def _peaks(command: list[str]) -> list[float]:
    """The greatest resident memory (MB) of any one process of this command, at four times in a minute."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen([str(Path(sys.executable).parent / command[0]), *command[1:]], env=environment, stderr=subprocess.DEVNULL) as process:
        peaks = []
        for _ in range(4):
            time.sleep(SECONDS / 4)
            peaks.append(max(_peak(pid) for pid in (process.pid, *_children(process.pid))))
        process.terminate()
    return peaks


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _peak(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0
