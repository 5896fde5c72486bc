"""Workers as real processes, killed for real: what is lost, what is done twice, and who pays for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from postroom.adapters.seam import Queue
from postroom.adapters.sql.engine import open_engine
from postroom.consumers.ledger.tables import ledger
from postroom.outbox.tables import lanes, relays
from support.workers import Place, children_of, drained, ended, eventually, place, supervisor

ALL_QUIET = {"pending": 0, "running": 0, "failed": 0}
ONE_DEAD = {"pending": 0, "running": 0, "failed": 1}


def stop_between_transactions(here: Place, child: int) -> None:
    """Stop a process that holds no lock, which nobody could take from it while it is stopped."""
    option = "timeout=0.2" if here.engine.dialect.name == "sqlite" else "options=-clock_timeout%3D200"
    patience = open_engine(f"{here.url}?{option}")
    while True:
        os.kill(child, signal.SIGSTOP)
        eventually(lambda: Path(f"/proc/{child}/stat").read_text().rpartition(") ")[2].startswith("T"))
        try:
            with patience.begin() as connection:
                for column in (ledger.c.lease_until, relays.c.until, lanes.c.until):
                    connection.execute(update(column.table).values({column: column}))
                connection.exec_driver_sql("UPDATE postroom_jobs SET lease_until = lease_until")
        except OperationalError:
            os.kill(child, signal.SIGCONT)
        else:
            patience.dispose()
            return


@pytest.fixture(params=["sqlite", "postgresql"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    flags = tmp_path / "flags"
    flags.mkdir()
    with place(request.getfixturevalue(f"{request.param}_database_url"), flags) as made:
        yield made


def test_s088_killed_before_the_handler_the_effect_happens_once_the_worker_is_replaced(here: Place) -> None:
    here.enqueue("die-before-the-handler", "k")
    drained(here)
    assert here.flag("read").exists()
    assert here.effects("k") == 1
    assert (here.entry("k").status, here.depth()) == ("done", ALL_QUIET)


def test_s105_killed_in_the_handler_the_job_runs_as_its_second_attempt_without_any_help(here: Place) -> None:
    here.enqueue("die-in-the-handler", "k")
    drained(here, lease=3600.0)
    assert here.rows("SELECT attempt FROM effects") == [(2,)]
    entry = here.entry("k")
    assert (entry.status, entry.attempts, entry.last_error) == ("done", 1, "worker lost")
    assert here.depth() == ALL_QUIET


def test_s089_killed_after_the_effect_in_its_session_nothing_is_there_and_the_next_attempt_has_it_once(here: Place) -> None:
    here.enqueue("die-after-the-effect", "k")
    drained(here)
    assert here.rows("SELECT attempt FROM effects") == [(2,)]
    assert (here.entry("k").status, here.depth()) == ("done", ALL_QUIET)


def test_killed_before_the_ack_the_job_is_not_done_again(here: Place) -> None:
    here.enqueue("die-before-the-ack", "k")
    drained(here)
    assert here.flag("ack").exists()
    assert here.rows("SELECT attempt FROM effects") == [(1,)]
    assert (here.entry("k").status, here.entry("k").attempts, here.depth()) == ("done", 0, ALL_QUIET)


def test_s109_s110_a_job_that_kills_its_process_ends_failed_after_its_attempts_and_its_neighbours_are_not_charged(here: Place) -> None:
    for number in range(20):
        here.enqueue("fine", f"before-{number}")
    here.enqueue("die-always", "killer")
    for number in range(20):
        here.enqueue("fine", f"after-{number}")
    report = drained(here, concurrency=2)
    killer = here.entry("killer")
    assert (killer.status, killer.attempts, killer.last_error) == ("failed", 3, "worker lost")
    neighbours = here.rows("SELECT status, attempts FROM postroom_ledger WHERE type = 'fine'")
    assert neighbours == [("done", 0)] * 40
    assert here.rows("SELECT max(attempt) FROM effects") <= [(3,)]
    assert (report["failed"], here.depth()) == (1, ONE_DEAD)
    [letter] = here.adapter.dead_letters("work").list()
    assert (letter.reason, letter.attempts) == ("given up after 3 attempts: worker lost", 3)


def test_killed_between_the_handlers_return_and_its_finish_the_job_is_done_though_it_was_its_last_attempt(here: Place) -> None:
    here.enqueue("die-before-the-finish", "k")
    assert drained(here, lease=3600.0)["failed"] == 0
    assert here.rows("SELECT attempt FROM effects") == [(1,)]
    entry = here.entry("k")
    assert (entry.status, entry.attempts, entry.last_error) == ("done", 0, None)
    assert here.depth() == ALL_QUIET


def test_when_a_worker_is_killed_the_next_relay_has_its_lanes_at_once(here: Place) -> None:
    here.enqueue("fine", "before")
    with supervisor(here, relay={"lease": 3600.0}) as process:
        eventually(lambda: here.effects("before"))
        [child] = children_of(process.pid)
        os.kill(child, signal.SIGKILL)
        here.enqueue("fine", "after")
        eventually(lambda: here.effects("after"))


def test_s109_the_neighbours_of_a_job_that_kills_its_process_again_and_again_are_not_charged(here: Place) -> None:
    here.enqueue("die-in-company", "killer")
    for number in range(4):
        here.enqueue("neighbour", f"neighbour-{number}")
    drained(here, concurrency=2)
    assert (here.entry("killer").status, here.entry("killer").attempts) == ("failed", 3)
    assert here.rows("SELECT status, attempts FROM postroom_ledger WHERE type = 'neighbour'") == [("done", 0)] * 4


def test_s093_a_copy_takes_over_when_the_worker_of_the_first_is_killed(here: Place) -> None:
    here.enqueue("long", "k")
    with supervisor(here, concurrency=2) as process:
        eventually(here.flag("started-k-1").exists)
        here.enqueue("long", "k")
        here.flag("let-k-end").touch()
        [child] = children_of(process.pid)
        os.kill(child, signal.SIGKILL)
        eventually(lambda: here.depth() == ALL_QUIET and here.entry("k").status == "done")
    assert here.effects("k") in {1, 2}  # an outside effect, in a process that was killed around that moment: at least once
    assert here.entry("k").attempts <= 1


def test_without_its_supervisor_a_killed_worker_is_noticed_when_the_lease_runs_out(here: Place) -> None:
    here.enqueue("long", "k")
    with supervisor(here, lease=1.5) as process:
        eventually(here.flag("started-k-1").exists)
        [child] = children_of(process.pid)
        process.kill()
        process.wait()
        os.kill(child, signal.SIGKILL)
    here.flag("let-k-end").touch()
    with here.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE postroom_jobs SET lease_until = lease_until - 30")  # the queue's own lease is 30 s
    drained(here)
    assert here.rows("SELECT attempt FROM effects") == [(2,)]
    entry = here.entry("k")
    assert (entry.status, entry.attempts, entry.last_error) == ("done", 1, "lease expired")


def test_a_child_that_loses_its_supervisor_drains(here: Place) -> None:
    here.enqueue("long", "k")
    with supervisor(here) as process:
        eventually(here.flag("started-k-1").exists)
        [child] = children_of(process.pid)
        process.kill()
        process.wait()
        here.enqueue("long", "later")
        here.flag("let-k-end").touch()
        eventually(lambda: not Path(f"/proc/{child}/cmdline").exists() or not Path(f"/proc/{child}/cmdline").read_bytes())
    assert (here.entry("k").status, here.effects("k")) == ("done", 1)
    assert not here.flag("started-later-1").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_s115_a_stop_with_enough_grace_ends_what_runs_and_hands_back_the_rest(here: Place, number: int) -> None:
    for key in "abcd":
        here.enqueue("long", key)
    with supervisor(here, concurrency=1) as process:
        eventually(here.flag("started-a-1").exists)
        process.send_signal(number)
        eventually(lambda: here.says("stopping"))
        here.flag("let-a-end").touch()
        assert ended(process, here)["signal"] == number
    assert (here.entry("a").status, here.effects("a")) == ("done", 1)
    assert here.depth() == {"pending": 3, "running": 0, "failed": 0}
    assert here.rows("SELECT max(attempts) FROM postroom_ledger") == [(0,)]


@pytest.mark.parametrize("how", ["the grace is short", "a second signal"])
def test_s115_a_stop_with_too_little_grace_hands_the_job_over_as_an_attempt(here: Place, how: str) -> None:
    here.enqueue("long", "a")
    with supervisor(here, grace=0.2 if how == "the grace is short" else 3600.0) as process:
        eventually(here.flag("started-a-1").exists)
        process.send_signal(signal.SIGTERM)
        if how == "a second signal":
            eventually(lambda: here.says("stopping"))
            process.send_signal(signal.SIGTERM)
        ended(process, here)
    entry = here.entry("a")
    assert (entry.status, entry.attempts) == ("pending", 1)
    assert entry.last_error.startswith("stopped: the worker ended")
    here.flag("let-a-end").touch()
    drained(here)
    assert here.rows("SELECT attempt FROM effects") == [(2,)]


def test_s113_a_handler_of_pure_computing_keeps_its_lease(here: Place) -> None:
    here.enqueue("busy", "k", {"number": 40}, queue=Queue(name="brief", lease=1.5))
    with supervisor(here, lease=1.5, processes=2) as process:
        eventually(lambda: here.effects("k"))
        eventually(lambda: here.depth("brief") == ALL_QUIET)
        process.send_signal(signal.SIGTERM)
        ended(process, here)
    assert here.effects("k") == 1
    assert (here.entry("k").status, here.entry("k").attempts) == ("done", 0)


def test_s107_of_two_processes_that_both_run_a_job_only_the_holder_can_end_it(here: Place) -> None:
    here.enqueue("long", "k")
    with supervisor(here) as first:
        eventually(here.flag("started-k-1").exists)
        [child] = children_of(first.pid)
        stop_between_transactions(here, child)  # as if its network was cut
        with here.engine.begin() as connection:
            connection.execute(update(ledger).values(lease_until=1.0))
            connection.exec_driver_sql("UPDATE postroom_jobs SET lease_until = 1.0")
        with supervisor(here):
            eventually(here.flag("started-k-2").exists)
            os.kill(child, signal.SIGCONT)
            here.flag("let-k-end").touch()
            eventually(lambda: here.effects("k") == 2)  # an outside effect is at least once
            eventually(lambda: here.depth() == ALL_QUIET)
    entry = here.entry("k")
    assert (entry.status, entry.attempts, entry.last_error) == ("done", 1, "lease expired")


def test_dead_children_are_replaced_and_all_processes_work(here: Place) -> None:
    with supervisor(here, processes=2, concurrency=1) as process:
        eventually(lambda: len(children_of(process.pid)) == 2)
        before = children_of(process.pid)
        for key in "ab":
            here.enqueue("long", key)
        eventually(lambda: here.flag("started-a-1").exists() and here.flag("started-b-1").exists())
        os.kill(before[0], signal.SIGKILL)
        eventually(lambda: len(children_of(process.pid)) == 2 and children_of(process.pid) != before)
        for key in "ab":
            here.flag(f"let-{key}-end").touch()
        eventually(lambda: here.depth() == ALL_QUIET)
    assert {here.entry(key).status for key in "ab"} == {"done"}
    assert sum(here.entry(key).attempts for key in "ab") == 1
