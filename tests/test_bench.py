"""The benchmarks run. What they measure is for people to judge: no figure is asserted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parent / "bench" / "run.py"


def test_a_benchmark_prints_both_rates_and_their_ratio():
    said = subprocess.run([sys.executable, BENCH, "enqueue-sqlite", "--rounds", "1"], capture_output=True, text=True, check=True).stdout
    line = said.splitlines()[-1]
    assert line.startswith("enqueue, sqlite")
    assert " x " in line
