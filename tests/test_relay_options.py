"""What can be chosen about a relay, and what can't."""

from __future__ import annotations

import random

import pytest

from postroom.adapters.errors import ConfigurationError
from postroom.outbox.backoff import Backoff
from postroom.outbox.marks import RoundResult
from postroom.outbox.options import RelayOptions
from postroom.outbox.pace import Pace

CHANCE = random.Random(4711)  # noqa: S311 - no secret
OUTAGE = Backoff(first=1.0, cap=8.0, jitter=0.0)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"batch": 0}, "at least 1"),
        ({"batch": 100_000}, "at most 10000"),
        ({"batch_bytes": 0}, "at least 1"),
        ({"max_attempts": 0}, "at least 1"),
        ({"lease": 0.0}, "more than 0"),
        ({"tidy_every": -1.0}, "more than 0"),
        ({"poll_min": 2.0, "poll_max": 1.0}, "poll_min <= poll_max"),
        ({"poll_min": 0.0}, "0 < poll_min"),
        ({"retention": -1.0}, "not negative"),
    ],
)
def test_numbers_that_no_relay_could_work_with_are_refused(options, rule):
    with pytest.raises(ConfigurationError, match=rule):
        RelayOptions(**options)


@pytest.mark.parametrize("numbers", [{"first": -1.0}, {"first": 2.0, "cap": 1.0}, {"factor": 0.5}, {"jitter": 1.5}])
def test_a_backoff_that_makes_no_sense_is_refused(numbers):
    with pytest.raises(ConfigurationError):
        Backoff(**numbers)


def test_a_backoff_grows_to_its_cap_and_stays_there_for_ever():
    backoff = Backoff(first=1.0, cap=60.0, jitter=0.0)
    assert [backoff.delay(failures, CHANCE) for failures in (1, 2, 3, 10, 100_000)] == [1.0, 2.0, 4.0, 60.0, 60.0]


def test_jitter_leaves_its_fraction_to_chance():
    delays = [Backoff(first=10.0, jitter=0.5).delay(1, CHANCE) for _ in range(200)]
    assert 5.0 <= min(delays) < 6.0
    assert 9.0 < max(delays) <= 10.0


def pace() -> Pace:
    return Pace(RelayOptions(poll_min=0.1, poll_max=0.5, outage=OUTAGE), CHANCE)


def test_there_is_no_pause_while_there_is_more_to_send():
    assert pace().after(RoundResult(sent=500, more=True)) == 0.0


def test_polling_gets_slower_while_there_is_nothing_and_quick_again_after_work():
    this = pace()
    assert [this.after(RoundResult()) for _ in range(4)] == [0.1, 0.2, 0.4, 0.5]
    assert this.after(RoundResult(sent=1)) == 0.1
    assert this.after(RoundResult()) == 0.2


def test_the_pauses_of_an_outage_grow_until_something_is_sent():
    this = pace()
    assert [this.after(RoundResult(unknown=1, outage="away")) for _ in range(5)] == [1.0, 2.0, 4.0, 8.0, 8.0]
    assert this.after(RoundResult(sent=3, unknown=1, outage="one row without an answer")) == 1.0
    assert this.failures == 1
    this.after(RoundResult())
    assert this.failures == 0
