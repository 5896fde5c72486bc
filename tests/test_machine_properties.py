"""Generated histories of many jobs, each step followed by every rule that is always true."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from postroom.adapters import machine
from postroom.adapters.errors import IllegalTransition, LeaseLost
from postroom.adapters.machine import Lease, Status

STEPS = 80
SECONDS = st.sampled_from([0.0, 1.0, 10.0, 31.0, 300.0])
ARROWS = {
    (Status.PENDING, Status.RUNNING),
    (Status.RUNNING, Status.RUNNING),
    (Status.RUNNING, Status.PENDING),
    (Status.RUNNING, Status.DONE),
    (Status.RUNNING, Status.FAILED),
    (Status.FAILED, Status.PENDING),
}
SETTLES = {
    "ack": machine.ack,
    "fail": lambda job, token, now: machine.fail(job, token, "smtp is down", now),
    "release": machine.release,
    "renew": lambda job, token, now: machine.renew(job, token, now + 30),
    "dead letter": lambda job, token, now: machine.dead_letter(job, token, "no such address", now),
}


class Histories(RuleBasedStateMachine):
    """Jobs in a table, a clock, and beside them a plain count of what should have been charged."""

    longest = 0

    @initialize()
    def begin(self):
        self.now = 1_000.0
        self.jobs = {}
        self.charged = {}
        self.ended = {}
        self.tokens = []
        self.steps = 0
        self.serial = itertools.count(1)

    def put(self, job, *, charge=0):
        """The table takes the new value: the arrow it went must be one of the machine's."""
        before = self.jobs[job.id]
        assert (before.status, job.status) in ARROWS
        assert (job.id, job.enqueued_at, job.max_attempts) == (before.id, before.enqueued_at, before.max_attempts)
        self.jobs[job.id] = job
        self.charged[job.id] += charge

    def some(self, data, *statuses):
        """One of the jobs with such a status, or None."""
        fitting = [job for job in self.jobs.values() if job.status in statuses]
        return data.draw(st.sampled_from(fitting)) if fitting else None

    @rule(max_attempts=st.integers(1, 4), delay=SECONDS)
    def enqueue(self, max_attempts, delay):
        job = machine.enqueue(f"job-{next(self.serial)}", now=self.now, max_attempts=max_attempts, delay=delay)
        self.jobs[job.id], self.charged[job.id] = job, 0

    @rule(seconds=SECONDS)
    def time_passes(self, seconds):
        self.now += seconds

    @rule(data=st.data(), lease=st.sampled_from([1.0, 30.0]))
    def take(self, data, lease):
        due = [job for job in self.jobs.values() if machine.is_due(job, self.now)]
        if due:
            job = data.draw(st.sampled_from(due))
            self.tokens.append((job.id, f"token-{next(self.serial)}"))
            self.put(machine.take(job, Lease(token=self.tokens[-1][1], until=self.now + lease), self.now))

    @rule(data=st.data())
    def take_what_is_not_due(self, data):
        others = [job for job in self.jobs.values() if not machine.is_due(job, self.now)]
        if others:
            job = data.draw(st.sampled_from(others))
            with pytest.raises(IllegalTransition):
                machine.take(job, Lease(token="stolen", until=self.now + 30), self.now)  # noqa: S106 - a receipt

    @rule(data=st.data())
    def ack(self, data):
        if job := self.some(data, Status.RUNNING):
            self.put(machine.ack(job, job.lease.token, self.now))

    @rule(data=st.data(), backoff=SECONDS)
    def fail(self, data, backoff):
        if job := self.some(data, Status.RUNNING):
            after = machine.fail(job, job.lease.token, "smtp is down", self.now, backoff)
            assert after.status is (Status.FAILED if machine.exhausts(job) else Status.PENDING)
            self.put(after, charge=1)

    @rule(data=st.data())
    def dead_letter(self, data):
        if job := self.some(data, Status.RUNNING):
            self.put(machine.dead_letter(job, job.lease.token, "no such address", self.now), charge=1)

    @rule(data=st.data(), delay=SECONDS)
    def release(self, data, delay):
        if job := self.some(data, Status.RUNNING):
            self.put(machine.release(job, job.lease.token, self.now, delay))

    @rule(data=st.data(), lease=st.sampled_from([1.0, 30.0]))
    def renew(self, data, lease):
        if job := self.some(data, Status.RUNNING):
            self.put(machine.renew(job, job.lease.token, self.now + lease))

    @rule()
    def reclaim_all(self):
        for job in [job for job in self.jobs.values() if machine.is_abandoned(job, self.now)]:
            self.put(machine.reclaim(job, self.now), charge=1)

    @rule(data=st.data())
    def retry(self, data):
        if job := self.some(data, Status.FAILED):
            self.put(machine.retry(job, self.now))
            self.charged[job.id] = 0
            del self.ended[job.id]

    @rule(data=st.data(), verb=st.sampled_from(sorted(SETTLES)))
    @precondition(lambda self: self.tokens)
    def settle_with_any_token_ever_given(self, data, verb):
        """A token that is not the present holder's is refused, whatever the job is now; nothing changes, as jobs are values."""
        identity, token = data.draw(st.sampled_from(self.tokens))
        job = self.jobs[identity]
        if job.lease is None or job.lease.token != token:
            with pytest.raises(LeaseLost if job.status is Status.RUNNING else IllegalTransition):
                SETTLES[verb](job, token, self.now)

    @invariant()
    def attempts_never_exceed_their_maximum_and_are_what_was_charged(self):
        for job in self.jobs.values():
            assert 0 <= job.attempts <= job.max_attempts
            assert job.attempts == self.charged[job.id]

    @invariant()
    def there_is_a_lease_if_and_only_if_the_job_is_running(self):
        for job in self.jobs.values():
            assert (job.lease is not None) == (job.taken_at is not None) == (job.status is Status.RUNNING)

    @invariant()
    def no_token_is_valid_for_two_jobs_and_only_the_last_one_given_is_valid(self):
        last = dict(self.tokens)
        valid = [(job.id, job.lease.token) for job in self.jobs.values() if job.lease]
        assert len({token for _, token in valid}) == len(valid)
        assert all(last[identity] == token for identity, token in valid)

    @invariant()
    def done_is_terminal_and_failed_stays_until_an_operator_retries(self):
        self.ended = {**{job.id: job for job in self.jobs.values() if job.finished_at is not None}, **self.ended}
        for identity, job in self.ended.items():
            assert self.jobs[identity] == job

    @invariant()
    def a_failed_job_says_why_and_an_unfinished_one_has_attempts_left(self):
        for job in self.jobs.values():
            assert job.last_error or job.status is not Status.FAILED
            assert job.attempts < job.max_attempts or job.status is Status.FAILED

    @invariant()
    def abandoned_is_derived_from_status_and_lease(self):
        for job in self.jobs.values():
            assert machine.is_abandoned(job, self.now) == (job.status is Status.RUNNING and job.lease.until < self.now)

    @invariant()
    def count_steps(self):
        self.steps += 1
        Histories.longest = max(Histories.longest, self.steps)


def test_every_rule_holds_in_generated_histories_of_fifty_steps_and_more():
    run_state_machine_as_test(Histories, settings=settings(max_examples=100, stateful_step_count=STEPS))
    assert Histories.longest >= 50
