"""Histories of deliveries, ends, crashes, replays and passing time: the ledger on SQLite against the pure state machine, step by step.

Between them stands a broker that may deliver anything twice, with or without delays of its own. Beside the rows it is checked that no job
is ever lost: whatever a key's state, a message that can bring it on is somewhere.
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import delete

from postroom.adapters import machine
from postroom.adapters.machine import Job, Lease, Status
from postroom.consumers.ledger import (
    AlreadyDone,
    Claim,
    Dead,
    Done,
    Exhausted,
    Failed,
    Finished,
    Later,
    Lost,
    Released,
    RetryScheduled,
    RunningElsewhere,
    Started,
    Waiting,
)
from postroom.consumers.ledger.entry import CRASHES, WORKER_LOST
from postroom.outbox.envelope import read_envelope
from postroom.outbox.rows import message_of
from postroom.outbox.tables import outbox
from support.ledgers import begin, claim, database, finish, open_ledger, pass_time, rows, waiting

LEASE = 1050.0
DELAYS = st.sampled_from([0.0, 350.0, 650.0])
STEPS = st.sampled_from([100.0, 400.0, 1100.0])
"""Seconds, chosen so that nothing ever ends within the few seconds that a run takes."""

WORKERS = ["worker-1", "worker-2"]
PLACES = st.integers(min_value=0, max_value=10**6)


@dataclass(frozen=True)
class Message:
    key: str
    job: str
    copy: int = 0
    replays: int = 0

    @property
    def number(self):
        return self.replays, self.copy


@dataclass(frozen=True)
class Known:
    """What the model knows of a key: its job by the machine, and which message brought it last."""

    job: Job
    message: Message


@dataclass(frozen=True)
class Attempt:
    worker: str
    started: Started
    message: Message
    asked: Claim

    @property
    def token(self):
        return str(self.started.fence)


class Histories(RuleBasedStateMachine):
    @initialize(native_delay=st.booleans(), max_attempts=st.integers(1, 3))
    def open(self, native_delay, max_attempts):
        self.folder = tempfile.TemporaryDirectory()
        self.engine = database(f"sqlite:///{Path(self.folder.name, 'ledger.db')}")
        self.native_delay, self.max_attempts, self.now = native_delay, max_attempts, 0.0
        self.books = {name: open_ledger(self.engine, name, native_delay=native_delay, lease=LEASE) for name in WORKERS}
        self.known: dict[str, Known] = {}
        self.sent: set[str] = set()
        self.broker: list[Message] = []
        self.letters: list[Message] = []
        self.attempts: list[Attempt] = []
        self.zombies: list[Attempt] = []
        self.effects: list[str] = []

    def teardown(self):
        if hasattr(self, "engine"):
            self.engine.dispose()
            self.folder.cleanup()

    @rule(key=st.sampled_from(["order-1", "order-2"]), job=st.sampled_from(["a", "b"]))
    def publish(self, key, job):
        """A job is published, or published once more."""
        self.sent.add(key)
        self.broker.append(Message(key, f"{key}-{job}"))

    @rule(seconds=STEPS)
    def wait(self, seconds):
        self.now += seconds
        pass_time(self.engine, seconds)

    @precondition(lambda self: self.broker)
    @rule(place=PLACES)
    def deliver_twice(self, place):
        self.broker.append(self.broker[place % len(self.broker)])

    @precondition(lambda self: self.broker)
    @rule(place=PLACES, worker=st.sampled_from(WORKERS), ahead=st.booleans())
    def deliver(self, place, worker, ahead):
        message = self.broker.pop(place % len(self.broker))
        asked = claim(message.key, message.job, copy=message.copy, replays=message.replays, ahead=ahead, max_attempts=self.max_attempts)
        [answer] = begin(self.books[worker], asked)
        expected = self.expect(message, ahead=ahead, worker=worker, token=str(getattr(answer, "fence", "")))
        assert type(answer) is expected
        if isinstance(answer, Started):
            job = self.known[message.key].job
            assert (answer.attempt, answer.solo, answer.last_error) == (job.attempts + 1, job.last_error in CRASHES, job.last_error)
            self.attempts.append(Attempt(worker, answer, message, asked))
        elif isinstance(answer, Exhausted):
            self.letters.append(message)
        elif isinstance(answer, Later) or (self.native_delay and isinstance(answer, RunningElsewhere | Waiting)):
            self.broker.append(message)

    def expect(self, message, *, ahead, worker, token):
        """What the ledger must answer; the model's job goes on accordingly."""
        if ahead and self.max_attempts == 1:
            return Later
        known = self.known.get(message.key) or Known(machine.enqueue(message.key, now=self.now, max_attempts=self.max_attempts), message)
        if known.job.status is Status.DONE:
            return AlreadyDone
        if known.message.job == message.job and message.number < known.message.number:
            return RetryScheduled
        return self.expect_start(message, self.freed(known, message), ahead=ahead, worker=worker, token=token)

    def freed(self, known, message):
        """The job as this message finds it: revived if an operator sent it, given up by a process whose lease has run out."""
        if known.job.status is Status.FAILED and message.replays > known.message.replays:
            return machine.retry(known.job, self.now)
        return machine.reclaim(known.job, self.now) if machine.is_abandoned(known.job, self.now) else known.job

    def expect_start(self, message, job, *, ahead, worker, token):
        if job.status is Status.FAILED:
            self.known[message.key] = replace(self.known[message.key], job=job)
            return Exhausted
        if job.status is Status.RUNNING:
            return RunningElsewhere
        if not machine.is_due(job, self.now):
            return Waiting
        if ahead and (machine.exhausts(job) or job.last_error in CRASHES):
            return Later
        self.known[message.key] = Known(machine.take(job, Lease(token=token, until=self.now + LEASE, worker=worker), self.now), message)
        return Started

    @rule()
    def relay(self):
        """What is due in the outbox reaches the broker."""
        for row in waiting(self.engine):
            if row.available_at <= row.enqueued_at + 1e9 and self.is_due(row):
                envelope = read_envelope(message_of(row))
                self.broker.append(Message(envelope.key, envelope.id, envelope.copy, envelope.replays))
                with self.engine.begin() as connection:
                    connection.execute(delete(outbox).where(outbox.c.seq == row.seq))

    def is_due(self, row):
        with self.engine.connect() as connection:
            return row.available_at <= connection.exec_driver_sql("SELECT (julianday('now') - 2440587.5) * 86400.0").scalar()

    @precondition(lambda self: self.attempts or self.zombies)
    @rule(place=PLACES, how=st.sampled_from(["done", "failed", "final", "released"]), delay=DELAYS)
    def end(self, place, how, delay):
        """A handler ends; perhaps one whose lease is long lost."""
        attempt = (self.attempts + self.zombies)[place % len(self.attempts + self.zombies)]
        alive = attempt in self.attempts
        (self.attempts if alive else self.zombies).remove(attempt)
        result = finish(self.books[attempt.worker], self.finish_of(attempt, how, delay))[0]
        assert result == self.expect_end(attempt, how, delay)
        if alive:
            self.settle(attempt.message, result, how)

    def finish_of(self, attempt, how, delay):
        if how == "done":
            return Done(started=attempt.started)
        if how == "released":
            return Released(started=attempt.started)
        return Failed(started=attempt.started, claim=attempt.asked, error="no route", delay=delay, final=how == "final")

    def expect_end(self, attempt, how, delay):
        known = self.known[attempt.message.key]
        job, message = known.job, known.message
        if job.lease is None or job.lease.token != attempt.token:
            return Finished() if how == "released" and self.is_released(attempt) else Lost()
        if how == "done":
            self.effects.append(job.id)
            job = machine.ack(job, attempt.token, self.now)
        elif how == "released":
            job = machine.release(job, attempt.token, self.now)
        elif how == "final":
            job = machine.dead_letter(job, attempt.token, "no route", self.now)
        else:
            job = machine.fail(job, attempt.token, "no route", self.now, delay)
            message = message if self.native_delay or job.status is Status.FAILED else replace(message, copy=message.copy + 1)
        self.known[attempt.message.key] = Known(job, message)
        return Dead(attempts=job.attempts, last_error="no route") if job.status is Status.FAILED else Finished()

    def is_released(self, attempt):
        """Given up as not run by its supervisor, and not begun since: what its own release would have come to."""
        row = next(row for row in rows(self.engine) if row.key == attempt.message.key)
        return (row.status, row.fence, row.attempts) == ("pending", attempt.started.fence, attempt.started.attempt - 1)

    def settle(self, message, result, how):
        """What a worker tells the broker."""
        if isinstance(result, Dead):
            self.letters.append(message)
        elif isinstance(result, Lost) or how == "released" or (how == "failed" and self.native_delay):
            self.broker.append(message)

    @precondition(lambda self: self.attempts)
    @rule(place=PLACES)
    def vanish(self, place):
        """A process is cut off: its deliveries come back, and it doesn't know."""
        attempt = self.attempts.pop(place % len(self.attempts))
        self.zombies.append(attempt)
        self.broker.append(attempt.message)

    @rule(
        worker=st.sampled_from(WORKERS), guilty=st.none() | PLACES, ended=st.dictionaries(st.integers(0, 3), st.sampled_from(["returned", "ended"]))
    )
    def die(self, worker, guilty, ended):
        """A process is dead and its supervisor saw it: at most one handler was running."""
        mine = [attempt for attempt in self.attempts if attempt.worker == worker]
        marks = {}
        for place, attempt in enumerate(mine):
            if guilty is not None and place == guilty % len(mine):
                marks[attempt.started.id, attempt.started.fence] = "running"
            elif place in ended:
                marks[attempt.started.id, attempt.started.fence] = ended[place]
        self.books[worker].abandon(worker, marks)
        for key, known in self.known.items():
            lease = known.job.lease
            if lease is not None and lease.worker == worker:
                mark = next((mark for (_, fence), mark in marks.items() if str(fence) == lease.token), None)
                self.known[key] = Known(self.expect_death(known.job, mark), known.message)
        self.attempts = [attempt for attempt in self.attempts if attempt not in mine]
        self.zombies += mine
        self.broker += [attempt.message for attempt in mine]

    def expect_death(self, job, mark):
        if mark == "returned":
            self.effects.append(job.id)
            return machine.ack(job, job.lease.token, self.now)
        if mark == "running" or (mark and machine.exhausts(job)):
            return machine.fail(job, job.lease.token, WORKER_LOST, self.now)
        return machine.release(job, job.lease.token, self.now)

    @rule(worker=st.sampled_from(WORKERS))
    def renew(self, worker):
        held = {attempt.token for attempt in self.attempts + self.zombies if attempt.worker == worker}
        lost = {str(fence) for _, fence in self.books[worker].renew()}
        for key, known in self.known.items():
            lease = known.job.lease
            if lease is not None and lease.worker == worker:
                assert lease.token not in lost
                if held:
                    self.known[key] = Known(machine.renew(known.job, lease.token, self.now + LEASE), known.message)

    @precondition(lambda self: self.letters)
    @rule(place=PLACES, twice=st.booleans())
    def replay(self, place, twice):
        """An operator replays a letter, perhaps cut short and begun again."""
        letter = self.letters.pop(place % len(self.letters))
        known = self.known[letter.key]
        if known.job.status is Status.DONE:
            return
        if known.job.status is Status.FAILED:
            row = next(row for row in rows(self.engine) if row.key == letter.key)
            replays = known.message.replays
            assert self.books[WORKERS[0]].retry(row.id, replays=replays)
            if twice:
                assert not self.books[WORKERS[0]].retry(row.id, replays=replays)
            self.known[letter.key] = known = Known(machine.retry(known.job, self.now), replace(known.message, replays=replays + 1, copy=0))
        self.broker.append(replace(letter, replays=known.message.replays, copy=known.message.copy))

    @invariant()
    def the_rows_are_as_the_machine_says(self):
        if not hasattr(self, "known"):
            return
        stored = {row.key: row for row in rows(self.engine)}
        assert stored.keys() == self.known.keys()
        for key, known in self.known.items():
            job, row = known.job, stored[key]
            assert (row.status, row.attempts, row.last_error) == (job.status.value, job.attempts, job.last_error)
            assert (row.job_id, row.copy, row.replays) == (known.message.job, known.message.copy, known.message.replays)
            assert (row.worker, row.taken_at is None) == (job.lease.worker if job.lease else None, job.taken_at is None)
            assert (row.lease_until is None, row.finished_at is None) == (job.lease is None, job.finished_at is None)

    @invariant()
    def a_key_takes_effect_at_most_once(self):
        assert len(getattr(self, "effects", [])) == len(set(getattr(self, "effects", [])))

    @invariant()
    def no_job_is_lost(self):
        if not hasattr(self, "known"):
            return
        on_their_way = {message.key for message in self.broker} | {attempt.message.key for attempt in self.attempts}
        on_their_way |= {row.key for row in waiting(self.engine)} | {letter.key for letter in self.letters}
        ended = {key for key, known in self.known.items() if known.job.status is Status.DONE}
        assert self.sent - ended <= on_their_way


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck))
