"""The garbage collector in a process that Postroom has to itself."""

import subprocess
import sys

import pytest

STATEMENTS = """
import gc
from postroom.outbox.garbage import collect_seldom
{before}
collect_seldom()
print(gc.get_threshold()[0], gc.get_freeze_count() > 1000)
"""


@pytest.mark.parametrize(
    ("before", "threshold"),
    [("", 10_000), ("gc.set_threshold(50_000)", 50_000), ("gc.set_threshold(0)", 0)],
    ids=["as Python has it", "an application's own", "an application without a collector"],
)
def test_what_is_loaded_is_not_collected_and_what_is_new_seldom(before, threshold):
    said = subprocess.run([sys.executable, "-c", STATEMENTS.format(before=before)], check=True, capture_output=True, text=True).stdout
    assert said.split() == [str(threshold), "True"]
