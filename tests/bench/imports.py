"""How long the imports take that every service and every command pays for."""

from __future__ import annotations

import statistics
import subprocess
import sys

STATEMENTS = ("import sqlalchemy", "import postroom.outbox", "import postroom.consumers", "import postroom.consumers.cli.app")
_CLOCK = "import time; began = time.perf_counter(); {}; print(time.perf_counter() - began)"


def report() -> None:
    for statement in STATEMENTS:
        print(f"{statement:<50} {statistics.median(_seconds(statement) for _ in range(5)) * 1000:>10.0f} ms")


def _seconds(statement: str) -> float:
    return float(subprocess.run([sys.executable, "-c", _CLOCK.format(statement)], check=True, capture_output=True, text=True).stdout)
