"""The supervisor's children: started, replaced, asked to end, killed when they don't."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from postroom.adapters.errors import ConfigurationError, Unavailable
from postroom.consumers import Jobs, Supervisor
from postroom.consumers.worker.config import REFUSED, UNREACHABLE
from postroom.consumers.worker.family import START_TRIES, Family
from postroom.consumers.worker.foreground import Signalled

GRACE = 30.0


class Child:
    """A child that dies when the test says so."""

    def __init__(self, ended: Callable[[Any], object], *, ready: bool = True) -> None:
        self.ended = ended
        self.ready = ready
        self.signals: list[int] = []
        self.exit_code: int | None = None
        self.buried = threading.Event()
        self.pid, self.ending = 4711, "nothing yet"

    def signal(self, number: int) -> None:
        self.signals.append(number)

    def die(self, exit_code: int = 1) -> None:
        self.exit_code = exit_code
        self.buried.set()
        self.ended(self)


class Nursery:
    """A family whose time the test moves."""

    def __init__(self, size: int, **how: Any) -> None:
        self.now = 1000.0
        self.born: list[Child] = []
        self.how = how
        self.family = Family(size, self._give_birth, grace=GRACE, clock=lambda: self.now)  # type: ignore[arg-type]
        self.family.tend(0)

    def _give_birth(self, ended: Callable[[Any], object]) -> Child:
        self.born.append(Child(ended, **self.how))
        return self.born[-1]

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.family.tend(0)  # hears of what has happened
        self.family.tend(0)  # does what is due

    def die_in_a_row(self, times: int, exit_code: int) -> None:
        """In the first place."""
        for _ in range(times):
            self.family.children[0].die(exit_code)
            self.after(0)
            self.after(60)


def test_each_place_has_a_child_and_one_that_lived_long_is_replaced_at_once() -> None:
    nursery = Nursery(3)
    assert nursery.family.complete
    nursery.now += 3600
    nursery.born[1].die()
    nursery.after(0)
    assert len(nursery.born) == 4
    assert nursery.family.complete


def test_a_child_that_keeps_dying_young_is_replaced_slower_and_slower() -> None:
    nursery, waits = Nursery(1), []
    for _ in range(6):
        born, since = len(nursery.born), nursery.now
        nursery.born[-1].die()
        while len(nursery.born) == born:
            nursery.after(0.05)
        waits.append(nursery.now - since)
    assert waits == sorted(waits)
    assert waits[-1] > 8 * waits[0]


def test_children_that_were_asked_to_end_are_not_replaced() -> None:
    nursery = Nursery(2)
    nursery.family.end()
    for child in nursery.born:
        assert child.signals == [signal.SIGTERM]
        child.die(0)
    nursery.after(60)
    assert nursery.family.children == []
    assert len(nursery.born) == 2


def test_a_child_that_does_not_end_within_its_grace_is_killed() -> None:
    nursery = Nursery(1)
    nursery.family.end()
    nursery.after(GRACE)
    assert nursery.born[0].signals == [signal.SIGTERM]
    nursery.after(GRACE)
    assert nursery.born[0].signals[1] == signal.SIGKILL


def test_a_second_request_hurries_them() -> None:
    nursery = Nursery(1)
    nursery.family.end()
    nursery.family.end()
    assert nursery.born[0].signals == [signal.SIGTERM, signal.SIGTERM]
    nursery.after(GRACE)
    assert signal.SIGKILL in nursery.born[0].signals


def test_a_signal_is_passed_to_whoever_tends() -> None:
    nursery = Nursery(1)
    nursery.family.notice(Signalled(signal.SIGINT))
    assert nursery.family.tend(0) == Signalled(signal.SIGINT)


@pytest.mark.parametrize("ready", [False, True])
def test_only_a_child_that_never_worked_can_say_that_its_configuration_is_wrong(ready: bool) -> None:  # noqa: FBT001
    nursery = Nursery(1, ready=ready)
    nursery.born[0].die(REFUSED)
    nursery.after(0)
    assert isinstance(nursery.family.fault, ConfigurationError) is not ready


def test_children_that_never_get_ready_are_given_up_and_that_is_no_success() -> None:
    nursery = Nursery(2, ready=False)
    nursery.die_in_a_row(START_TRIES - 1, 1)
    assert nursery.family.fault is None
    nursery.die_in_a_row(1, 1)
    assert isinstance(nursery.family.fault, Unavailable)
    assert "5 in a row ended before they were ready" in str(nursery.family.fault)
    assert not nursery.family.worked


def test_children_that_never_get_ready_beside_one_that_works_are_tried_again_and_again() -> None:
    nursery = Nursery(2, ready=False)
    nursery.born[1].ready = True
    nursery.die_in_a_row(3 * START_TRIES, 1)
    assert nursery.family.fault is None
    assert nursery.family.worked


@pytest.mark.parametrize(("worked", "given_up"), [(False, True), (True, False)])
def test_a_server_that_is_away_is_waited_for_by_those_who_have_reached_it_before(worked: bool, given_up: bool) -> None:  # noqa: FBT001
    nursery = Nursery(1, ready=worked)
    nursery.die_in_a_row(1, UNREACHABLE)
    nursery.how["ready"] = nursery.born[-1].ready = False
    nursery.die_in_a_row(2 * START_TRIES, UNREACHABLE)
    assert (nursery.family.fault is not None) is given_up


def test_a_child_that_is_killed_in_an_outage_does_not_make_it_a_false_start() -> None:
    nursery = Nursery(1, ready=True)
    nursery.die_in_a_row(1, UNREACHABLE)
    nursery.how["ready"] = False
    nursery.die_in_a_row(START_TRIES, UNREACHABLE)
    nursery.die_in_a_row(START_TRIES - 1, -signal.SIGKILL)
    assert nursery.family.fault is None
    nursery.die_in_a_row(1, -signal.SIGKILL)
    assert isinstance(nursery.family.fault, Unavailable)


@pytest.mark.parametrize(
    ("ready", "exit_code", "level"),
    [(False, -signal.SIGTERM, "INFO"), (True, 0, "INFO"), (True, -signal.SIGTERM, "WARNING"), (False, -signal.SIGKILL, "WARNING")],
)
def test_a_child_that_ends_as_it_was_told_is_no_warning(ready: bool, exit_code: int, level: str, caplog: pytest.LogCaptureFixture) -> None:  # noqa: FBT001
    nursery = Nursery(1, ready=ready)
    nursery.family.end()
    with caplog.at_level("INFO", "postroom.supervisor"):
        nursery.born[0].die(exit_code)
        nursery.after(0)
    assert [record.levelname for record in caplog.records] == [level]
    assert nursery.family.fault is None


def test_a_broker_that_other_processes_can_not_see_is_refused() -> None:
    jobs = Jobs()

    @jobs.handler("t", queue="q")
    def handle(payload: int) -> None: ...

    with pytest.raises(ConfigurationError, match="run a Worker in this one"):
        Supervisor("app:jobs", jobs, database="sqlite://", broker="memory:")
