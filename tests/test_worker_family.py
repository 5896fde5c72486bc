"""The supervisor's children: started, replaced, asked to end, killed when they don't."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from postroom.adapters.errors import ConfigurationError
from postroom.consumers import Jobs, Supervisor
from postroom.consumers.worker.config import REFUSED
from postroom.consumers.worker.family import Family
from postroom.consumers.worker.foreground import Signalled

GRACE = 30.0


class Child:
    """A child that dies when the test says so."""

    def __init__(self, ended: Callable[[Any], object], *, polled_at: float = 1.0) -> None:
        self.ended = ended
        self.marks = SimpleNamespace(polled_at=polled_at)
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


@pytest.mark.parametrize(("polled_at", "refused"), [(0.0, True), (1.0, False)])
def test_only_a_child_that_never_worked_can_say_that_its_configuration_is_wrong(polled_at: float, refused: bool) -> None:  # noqa: FBT001
    nursery = Nursery(1, polled_at=polled_at)
    nursery.born[0].die(REFUSED)
    nursery.after(0)
    assert nursery.family.refused is refused


def test_a_broker_that_other_processes_can_not_see_is_refused() -> None:
    jobs = Jobs()

    @jobs.handler("t", queue="q")
    def handle(payload: int) -> None: ...

    with pytest.raises(ConfigurationError, match="run a Worker in this one"):
        Supervisor("app:jobs", jobs, database="sqlite://", broker="memory:")
