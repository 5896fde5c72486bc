"""Generated histories of a Memory beside a model that is too simple to be wrong: a list, sorted anew for every take."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from postroom.adapters import LeaseLost, Message, Queue
from postroom.adapters.memory import Memory

SECONDS = st.sampled_from([0.0, 0.0, 1.0, 7.0, 31.0])
LEASE = 30.0


@dataclass
class Modelled:
    """One job as the model sees it."""

    number: int
    key: str | None
    due_at: float
    available_at: float
    max_attempts: int
    status: str = "pending"
    attempts: int = 0
    holder: int | None = None
    until: float = 0.0
    takes: int = 0

    def end_attempt(self, available_at, *, charge):
        self.holder = None
        self.attempts += charge
        self.available_at = available_at
        self.status = "failed" if self.attempts >= self.max_attempts else "pending"


class Histories(RuleBasedStateMachine):
    """Two consumers of one queue."""

    longest = 0

    @initialize(ordered=st.booleans())
    def begin(self, ordered):
        self.now, self.ordered, self.steps = 1_000.0, ordered, 0
        self.memory = Memory(clock=lambda: self.now)
        self.memory.ensure([Queue(name="q", ordered=ordered, lease=LEASE)])
        self.consumers = [self.subscribe(index) for index in range(2)]
        self.model, self.held, self.stale, self.dead, self.takes = [], {}, [], [], itertools.count()

    def subscribe(self, index):
        return self.memory.consume({"q": 1}, group="g", prefetch=4, name=f"w{index}")

    @rule(key=st.sampled_from([None, "a", "a", "b"]), delay=SECONDS, max_attempts=st.integers(1, 3))
    def publish(self, key, delay, max_attempts):
        number = len(self.model)
        due_at = self.now + delay
        self.model.append(Modelled(number=number, key=key, due_at=due_at, available_at=due_at, max_attempts=max_attempts))
        self.memory.publish([Message(id=str(number), queue="q", body=b"", ordering_key=key, delay=delay, max_attempts=max_attempts)])

    @rule(seconds=SECONDS)
    def time_passes(self, seconds):
        self.now += seconds

    @rule(index=st.integers(0, 1), limit=st.integers(1, 6))
    def receive(self, index, limit):
        self.expire()
        room = 4 - sum(job.status == "running" and job.holder == index for job in self.model)
        expected = []
        while len(expected) < min(limit, room) and (job := self.next_job()):
            job.status, job.holder, job.until, job.takes = "running", index, self.now + LEASE, next(self.takes)
            expected.append((str(job.number), job.attempts))
        deliveries = self.consumers[index].receive(limit, 0)
        assert [(delivery.message.id, delivery.attempts) for delivery in deliveries] == expected
        self.held |= {int(delivery.message.id): (index, delivery) for delivery in deliveries}

    def expire(self):
        """The order in which leases ran out is the order of the dead letters."""
        for job in sorted(self.model, key=lambda job: (job.until, job.takes)):
            if job.status == "running" and job.until < self.now:
                job.end_attempt(self.now, charge=1)
                self.lose(job)

    def lose(self, job):
        self.stale.append(self.held.pop(job.number))
        if job.status == "failed":
            self.dead.append(job.number)

    def next_job(self):
        due = [job for job in self.model if job.status == "pending" and job.available_at <= self.now and not self.is_behind_another(job)]
        return min(due, key=lambda job: (job.available_at, job.number), default=None)

    def is_behind_another(self, job):
        return (
            self.ordered
            and job.key is not None
            and any(
                other.key == job.key and other.status not in {"done", "gone"} and (other.due_at, other.number) < (job.due_at, job.number)
                for other in self.model
            )
        )

    @rule(data=st.data(), how=st.sampled_from(["ack", "fail", "release", "dead letter", "extend"]), delay=SECONDS)
    def settle(self, data, how, delay):
        if not self.held:
            return
        number = data.draw(st.sampled_from(sorted(self.held)))
        index, delivery = self.held[number]
        consumer, job = self.consumers[index], self.model[number]
        if how == "ack":
            consumer.ack([delivery])
            job.status = "done"
        elif how == "fail":
            consumer.fail(delivery, "smtp is down", delay)
            job.end_attempt(self.now + delay, charge=1)
        elif how == "release":
            consumer.release([delivery], delay)
            job.end_attempt(self.now + delay if delay else job.available_at, charge=0)
        elif how == "dead letter":
            consumer.dead_letter(delivery, "no such address")
            job.status = "failed"
        else:
            consumer.extend([delivery], 100)
            job.until = self.now + 100
            return
        self.lose(job)

    @rule(data=st.data(), how=st.sampled_from(["ack", "release", "extend"]))
    def settle_with_a_stale_token(self, data, how):
        if self.stale:
            index, delivery = data.draw(st.sampled_from(self.stale))
            settle = getattr(self.consumers[index], how)
            with pytest.raises(LeaseLost):
                settle([delivery], 100) if how == "extend" else settle([delivery])

    @rule(index=st.integers(0, 1), by_name=st.booleans())
    def hand_all_back(self, index, by_name):
        mine = [job for job in self.model if job.status == "running" and job.holder == index]
        if by_name:
            assert self.memory.abandon(f"w{index}") == len(mine)
        else:
            self.consumers[index].close()
            self.consumers[index] = self.subscribe(index)
        for job in mine:
            job.end_attempt(job.available_at, charge=0)
            self.lose(job)

    @rule(data=st.data(), put_back=st.booleans())
    def settle_a_dead_letter(self, data, put_back):
        letters = self.memory.dead_letters("q")
        listed = letters.list(1000)
        assert [letter.message.id for letter in listed] == [str(number) for number in self.dead]
        if not listed:
            return
        letter = data.draw(st.sampled_from(listed))
        job = self.model[int(letter.message.id)]
        self.dead.remove(job.number)
        if put_back:
            assert letters.put_back([letter.id]) == [letter.id]
            job.status, job.attempts, job.available_at = "pending", 0, self.now
        else:
            assert letters.take([letter.id]) == [letter]
            job.status = "gone"

    @invariant()
    def every_job_is_in_the_books_exactly_once(self):
        self.steps += 1
        Histories.longest = max(Histories.longest, self.steps)
        statuses = [job.status for job in self.model]
        depth = dict(self.memory.depth("q"))
        assert depth.pop("blocked", 0) <= depth["pending"]
        assert depth == {status: statuses.count(status) for status in ("pending", "running", "failed")}


def test_a_memory_does_what_its_model_does():
    run_state_machine_as_test(Histories, settings=settings(max_examples=150, stateful_step_count=80))
    assert Histories.longest >= 50
