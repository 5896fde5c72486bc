"""How long the imports take that every service and every command pays for."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable

STATEMENTS = ("import sqlalchemy", "import postroom.outbox", "import postroom.consumers", "import postroom.consumers.cli.app")
_CLOCK = "import time; began = time.perf_counter(); {}; print(time.perf_counter() - began)"


def report(_database: Callable[[], object]) -> None:
    for statement in STATEMENTS:
        print(f"{statement:<46} {statistics.median(_seconds(statement) for _ in range(5)) * 1000:>10.0f} ms")


def _seconds(statement: str) -> float:
    return float(subprocess.run([sys.executable, "-c", _CLOCK.format(statement)], check=True, capture_output=True, text=True).stdout)
