# ruff: noqa: S106, S107 - the token of a lease is a receipt, not a secret
"""The state machine, one arrow and one refusal after the other. The sentences are those of the two documents it was built from."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from postroom.adapters import machine
from postroom.adapters.errors import IllegalTransition, LeaseLost
from postroom.adapters.machine import Job, Lease, Status

T = 1_000.0
LEASE = 30.0


def pending(max_attempts=3, delay=0.0):
    return machine.enqueue("4711", now=T, max_attempts=max_attempts, delay=delay)


def running(job=None, token="first", now=T):
    return machine.take(job or pending(), Lease(token=token, until=now + LEASE, worker="w1"), now)


def failed():
    return machine.fail(running(pending(max_attempts=1)), "first", "smtp is down", T)


def done():
    return machine.ack(running(), "first", T + 1)


def one_of_each():
    return {"pending": pending(), "running": running(), "done": done(), "failed": failed()}


def test_an_enqueued_job_is_pending_with_no_attempts_and_available_at_once():
    assert pending() == Job(id="4711", enqueued_at=T, available_at=T, max_attempts=3, status=Status.PENDING, attempts=0)


def test_a_delayed_job_is_not_taken_before_its_time_and_is_taken_then():
    job = pending(delay=60)
    assert not machine.is_due(job, T + 59.9)
    with pytest.raises(IllegalTransition, match="pending, available at 1060"):
        running(job, now=T + 59.9)
    assert running(job, now=T + 60).status is Status.RUNNING


def test_after_take_the_job_is_running_with_taken_at_set_and_a_second_take_does_not_return_it():
    job = running()
    assert (job.status, job.taken_at, job.lease) == (Status.RUNNING, T, Lease(token="first", until=T + LEASE, worker="w1"))
    assert not machine.is_due(job, T + 1)
    with pytest.raises(IllegalTransition, match="it is running"):
        running(job, token="second", now=T + 1)


def test_after_ack_it_is_done_and_a_second_ack_is_rejected():
    job = done()
    assert (job.status, job.lease, job.taken_at, job.finished_at) == (Status.DONE, None, None, T + 1)
    with pytest.raises(IllegalTransition, match="it is done, not running"):
        machine.ack(job, "first", T + 2)


def test_after_fail_with_attempts_left_attempts_is_incremented_and_the_next_take_returns_it():
    job = machine.fail(running(), "first", "smtp is down", T + 1)
    assert (job.status, job.attempts, job.last_error, job.lease, job.taken_at) == (Status.PENDING, 1, "smtp is down", None, None)
    assert running(job, token="second", now=T + 1).attempts == 1


def test_after_fail_with_backoff_the_job_waits_for_it():
    job = machine.fail(running(), "first", "smtp is down", T + 1, backoff=10)
    assert job.available_at == T + 11
    assert not machine.is_due(job, T + 10.9)
    assert machine.is_due(job, T + 11)


def test_the_third_fail_on_a_max_of_three_leaves_it_failed_with_last_error_and_take_does_not_return_it():
    job = pending(max_attempts=3)
    for attempt in (1, 2, 3):
        job = machine.fail(running(job), "first", f"attempt {attempt}", T)
    assert (job.status, job.attempts, job.last_error, job.finished_at) == (Status.FAILED, 3, "attempt 3", T)
    with pytest.raises(IllegalTransition, match="it is failed"):
        running(job, now=T + 1000)


def test_taken_and_never_acked_it_is_returned_after_the_lease_with_attempts_incremented():
    job = running()
    assert not machine.is_abandoned(job, T + LEASE)
    with pytest.raises(IllegalTransition, match="no lease of it has run out"):
        machine.reclaim(job, T + LEASE)
    assert machine.is_abandoned(job, T + LEASE + 1)
    job = machine.reclaim(job, T + LEASE + 1)
    assert (job.attempts, job.last_error) == (1, "lease expired")
    assert machine.is_due(job, T + LEASE + 1)


def test_a_lease_that_expires_on_the_last_attempt_leaves_the_job_failed():
    job = machine.reclaim(running(pending(max_attempts=1)), T + LEASE + 1)
    assert (job.status, job.attempts, job.last_error) == (Status.FAILED, 1, "lease expired")


def test_worker_dies_after_sending_before_ack_the_crash_example_with_its_numbers():
    before = running()
    assert (before.status, before.attempts, before.taken_at) == (Status.RUNNING, 0, T)
    after = machine.reclaim(before, T + LEASE + 1)
    assert (after.status, after.attempts, after.taken_at) == (Status.PENDING, 1, None)
    second_delivery = running(after, token="second", now=T + LEASE + 1)
    assert (second_delivery.id, second_delivery.attempts, second_delivery.taken_at) == ("4711", 1, T + LEASE + 1)
    with pytest.raises(LeaseLost):
        machine.ack(second_delivery, "first", T + LEASE + 2)
    assert machine.ack(second_delivery, "second", T + LEASE + 2).status is Status.DONE


def test_a_lease_that_ran_out_and_that_nobody_reclaimed_still_acks():
    assert machine.ack(running(), "first", T + 10 * LEASE).status is Status.DONE


def test_a_released_job_is_back_at_its_old_place_uncharged():
    job = machine.fail(running(), "first", "smtp is down", T)
    assert machine.release(running(job, token="second"), "second", T + 5) == job


def test_a_job_released_with_a_delay_is_deferred_uncharged():
    job = machine.release(running(), "first", T + 5, delay=20)
    assert (job.status, job.attempts, job.available_at) == (Status.PENDING, 0, T + 25)


def test_a_renewed_lease_lasts_longer_and_keeps_its_token():
    job = machine.renew(running(), "first", T + 100)
    assert job.lease == Lease(token="first", until=T + 100, worker="w1")
    assert not machine.is_abandoned(job, T + 99)


def test_a_dead_letter_is_failed_at_once_whatever_attempts_are_left():
    job = machine.dead_letter(running(), "first", "no such address", T + 1)
    assert (job.status, job.attempts, job.last_error, job.finished_at) == (Status.FAILED, 1, "no such address", T + 1)


def test_retry_of_a_failed_job_gives_a_clean_budget_and_keeps_the_last_error():
    job = machine.retry(failed(), T + 100)
    assert (job.status, job.attempts, job.replays, job.last_error, job.finished_at) == (Status.PENDING, 0, 1, "smtp is down", None)
    assert machine.is_due(job, T + 100)


@pytest.mark.parametrize("status", ["pending", "running", "done"])
def test_only_a_failed_job_can_be_retried(status):
    with pytest.raises(IllegalTransition, match=f"it is {status}, not failed"):
        machine.retry(one_of_each()[status], T)


SETTLES = {
    "acked": lambda job, token: machine.ack(job, token, T),
    "failed": lambda job, token: machine.fail(job, token, "smtp is down", T),
    "released": lambda job, token: machine.release(job, token, T),
    "renewed": lambda job, token: machine.renew(job, token, T + 100),
    "dead-lettered": lambda job, token: machine.dead_letter(job, token, "no such address", T),
}


@pytest.mark.parametrize("verb", SETTLES)
@pytest.mark.parametrize("status", ["pending", "done", "failed"])
def test_only_a_running_job_can_be_settled_or_renewed(verb, status):
    with pytest.raises(IllegalTransition, match=f"can't be {verb}: it is {status}, not running"):
        SETTLES[verb](one_of_each()[status], "first")


@pytest.mark.parametrize("verb", SETTLES)
def test_only_the_holder_can_settle_or_renew(verb):
    with pytest.raises(LeaseLost, match=f"job 4711 can't be {verb}: another holder has it now"):
        SETTLES[verb](running(), "another")


@pytest.mark.parametrize("status", ["running", "done", "failed"])
def test_only_a_pending_job_can_be_taken(status):
    with pytest.raises(IllegalTransition, match=f"it is {status}"):
        running(one_of_each()[status], token="second", now=T + 1000)


@pytest.mark.parametrize("status", ["pending", "done", "failed"])
def test_only_a_running_job_can_be_reclaimed(status):
    with pytest.raises(IllegalTransition, match=f"it is {status}"):
        machine.reclaim(one_of_each()[status], T + 1000)


def test_s108_a_stale_attempt_changes_nothing_once_the_job_is_done():
    job = running(machine.reclaim(running(), T + LEASE + 1), token="second", now=T + LEASE + 1)
    finished = machine.ack(job, "second", T + LEASE + 2)
    for settle in SETTLES.values():
        with pytest.raises(IllegalTransition):
            settle(finished, "first")
    assert finished.status is Status.DONE


IMPOSSIBLE = {
    "a lease if and only if running": (pending, {"lease": Lease(token="t", until=T)}),
    "taken_at if and only if running": (running, {"taken_at": None}),
    "0 <= attempts <= max_attempts": (failed, {"attempts": 2}),
    "an unfinished job has attempts left": (pending, {"attempts": 3}),
    "a failed job has last_error": (failed, {"last_error": None}),
    "finished_at if and only if done or failed": (done, {"finished_at": None}),
    "max_attempts is at least 1": (pending, {"max_attempts": 0}),
}


@pytest.mark.parametrize("rule", IMPOSSIBLE)
def test_an_impossible_state_can_not_be_built(rule):
    build, change = IMPOSSIBLE[rule]
    with pytest.raises(ValueError, match=rule):
        replace(build(), **change)


def test_a_job_is_a_value_that_nobody_changes_in_place():
    with pytest.raises(FrozenInstanceError):
        pending().status = Status.DONE


def test_a_job_whose_limit_someone_else_keeps_never_exhausts_it():
    job = pending(max_attempts=machine.UNLIMITED)
    for _ in range(1000):
        job = machine.fail(running(job), "first", "smtp is down", T)
    assert (job.status, job.attempts) == (Status.PENDING, 1000)


def test_the_last_attempt_is_known_before_it_is_made():
    assert not machine.exhausts(pending(max_attempts=2))
    assert machine.exhausts(machine.fail(running(pending(max_attempts=2)), "first", "smtp is down", T))
