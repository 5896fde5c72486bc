"""Start marks survive the process that wrote them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap

from postroom.consumers.worker.marks import DEAF, Marks


def test_what_is_marked_is_read_and_what_is_not_is_not() -> None:
    marks = Marks.in_memory(lanes=2, places=3)
    marks.start(0, 0, 11, 5)
    marks.start(1, 2, 12, 2**62)
    marks.end(0, 0)
    marks.start(0, 1, 13, 5)
    marks.returned(0, 1)
    assert marks.read() == {(11, 5): "ended", (12, 2**62): "running", (13, 5): "returned"}


def test_a_slot_is_used_again_by_the_next_round() -> None:
    marks = Marks.in_memory(lanes=1, places=1)
    marks.start(0, 0, 11, 5)
    marks.end(0, 0)
    marks.start(0, 0, 12, 1)
    assert marks.read() == {(12, 1): "running"}


def test_the_last_poll_is_known_on_the_other_side() -> None:
    with tempfile.TemporaryFile() as page:
        here = Marks.in_file(page.fileno(), lanes=2, places=2)
        there = Marks.in_file(page.fileno(), lanes=2, places=2)
    assert here.polled_at == 0
    there.polled(1234.5)
    there.start(1, 1, 7, 8)
    assert here.polled_at == 1234.5
    assert here.read() == {(7, 8): "running"}


def test_the_marks_of_a_process_killed_by_sigkill_are_read_by_another() -> None:
    program = """
        import os, signal, sys
        from postroom.consumers.worker.marks import Marks
        marks = Marks.in_file(int(sys.argv[1]), lanes=2, places=128)
        marks.start(0, 0, 1, 10)
        marks.end(0, 0)
        marks.start(0, 1, 2, 10)
        marks.start(1, 127, 3, 10)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with tempfile.TemporaryFile() as page:
        marks = Marks.in_file(page.fileno(), lanes=2, places=128)
        ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(page.fileno())], pass_fds=[page.fileno()], check=False)
    assert ended.returncode == -9
    assert marks.read() == {(1, 10): "ended", (2, 10): "running", (3, 10): "running"}


def test_s014_whether_jobs_of_all_queues_come_is_known_on_the_other_side() -> None:
    with tempfile.TemporaryFile() as page:
        here, there = (Marks.in_file(page.fileno(), lanes=1, places=1) for _ in range(2))
    assert not here.ready(3.0)
    there.polled(1000.0)
    assert here.ready(1000.0 + DEAF / 2)
    assert not here.ready(1000.0 + DEAF)
    there.troubled(1001.0)
    assert not here.ready(1001.0)
    there.polled(1002.0)
    assert here.ready(1002.0)
