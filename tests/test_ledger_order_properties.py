"""Random histories of an ordered queue on a broker that can't hold a job back: no job starts before an earlier one of its key has ended.

Everything is real but the time: the outbox with its relay, `Memory(native_delay=False)`, and the ledger on SQLite; between them workers that fail,
die before or after their outcome is stored, and people who replay and discard what was given up, or purge it.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.adapters.memory import Memory
from postroom.adapters.seam import Consumer, Delivery, Queue
from postroom.consumers.dead import QueuePlace, as_seen, discarded, letters
from postroom.consumers.dead import Selection as Choice
from postroom.consumers.ledger import Claim, Conflict, Dead, Done, Exhausted, Failed, Finish, Finished, Ledger, Released, Started
from postroom.consumers.lost import LostPlace
from postroom.consumers.replay import Replay, mark
from postroom.outbox import Outbox
from postroom.outbox.envelope import digest, read_envelope
from postroom.outbox.relay import Relay
from support.ledgers import database, open_ledger, pass_time

LEASE = 1000.0
QUEUE = Queue(name="emails", ordered=True, lease=10 * LEASE)
WORKERS = ["worker-1", "worker-2", "worker-3"]
MAX_ATTEMPTS = 2
KEYS = ["k1", "k2"]
ENDS = ["done", "failed", "final", "released"]


@dataclass
class Member:
    """A consumer with its ledger, and what it has begun."""

    consumer: Consumer
    book: Ledger
    running: "list[Running]"


@dataclass(frozen=True)
class Running:
    started: Started
    asked: Claim
    delivery: Delivery


class History:
    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.engine = database(f"sqlite:///{Path(self.folder.name, 'postroom.db')}")
        self.now = 0.0
        self.broker = Memory(clock=lambda: self.now, native_delay=False)
        self.broker.ensure([QUEUE])
        self.outbox = Outbox(queue=QUEUE)
        self.relay = Relay(self.engine, self.broker)
        self.members = {name: self.join(name) for name in WORKERS}
        self.dead = self.broker.dead_letters("emails")
        place = QueuePlace("emails", self.dead)
        self.places = [place, LostPlace(self.engine, "emails", [place], names=())]
        self.sent: dict[str, list[str]] = {key: [] for key in KEYS}
        self.ended: set[str] = set()
        self.discarded: set[str] = set()

    def join(self, name):
        consumer = self.broker.consume({"emails": 1}, group="default", prefetch=5, name=name)
        return Member(consumer, open_ledger(self.engine, name, native_delay=False, lease=LEASE), [])

    def close(self):
        self.broker.close()
        self.engine.dispose()
        self.folder.cleanup()

    def enqueue(self, key, twin):
        """A job is enqueued: about something new, or about the same as the last one of its key."""
        number = len(self.sent[key]) - (1 if twin and self.sent[key] else 0)
        with self.engine.begin() as connection:
            self.outbox.enqueue(connection, "send", {}, key=f"{key}-{number}", ordering_key=key)
        if number == len(self.sent[key]):
            self.sent[key].append(f"{key}-{number}")

    def relay_some(self):
        self.relay.run_once()

    def wait(self, seconds):
        self.now += seconds
        pass_time(self.engine, seconds)

    def receive(self, name):
        member = self.members[name]
        for delivery in member.consumer.receive(1, 0.0):
            self.begin(member, delivery)

    def begin(self, member, delivery):
        envelope = read_envelope(delivery.message)
        asked = Claim(
            message=delivery.message,
            envelope=envelope,
            queue="emails",
            group="default",
            digest=digest(delivery.message.body),
            max_attempts=MAX_ATTEMPTS,
            ordered=True,
        )
        _, [answer] = member.book.round([], [asked])
        if isinstance(answer, Started):
            self.check_turn(envelope)
            member.running.append(Running(answer, asked, delivery))
        elif isinstance(answer, Exhausted | Conflict):
            member.consumer.dead_letter(delivery, "given up")
        else:
            member.consumer.ack([delivery])

    def check_turn(self, envelope):
        keys = self.sent[envelope.ordering_key]
        earlier = keys[: keys.index(envelope.key)]
        assert set(earlier) <= self.ended | self.discarded, f"{envelope.key} starts before {set(earlier) - self.ended - self.discarded}"
        assert envelope.key not in self.ended

    def end(self, place, outcome, settled):
        """An attempt ends. Perhaps its worker dies before it can settle the delivery."""
        if not self.running:
            return
        member, running = self.running[place % len(self.running)]
        member.running.remove(running)
        _, result = self.store(member, running, outcome)
        if not settled:
            self.die_of(member)
        elif isinstance(result, Dead):
            member.consumer.dead_letter(running.delivery, result.last_error)
        elif outcome == "released" or not isinstance(result, Finished):
            member.consumer.release([running.delivery])
        else:
            member.consumer.ack([running.delivery])

    def store(self, member, running, outcome):
        finish: Finish
        match outcome:
            case "done":
                finish = Done(started=running.started)
            case "released":
                finish = Released(started=running.started)
            case _:
                finish = Failed(started=running.started, claim=running.asked, error="no", delay=5.0, final=outcome == "final")
        [result], _ = member.book.round([finish], [])
        if outcome == "done" and isinstance(result, Finished):
            self.ended.add(running.asked.envelope.key)
        return finish, result

    def die(self, name):
        """A worker vanishes: what it held is delivered again, and its leases run on."""
        self.die_of(self.members[name])

    def die_of(self, member):
        name = next(name for name, other in self.members.items() if other is member)
        member.consumer.close()
        self.members[name] = self.join(name)

    @property
    def running(self):
        return [(member, running) for member in self.members.values() for running in member.running]

    def mend(self, for_good):
        """A person replays the oldest dead letter, or gives it up for good; if there is none, one that was purged."""
        found = list(letters(self.places, Choice(limit=1)))
        if for_good:
            self.discarded |= {gone.envelope.key for gone in discarded(self.engine, as_seen(self.engine, found), "a typo") if gone.envelope}
        else:
            self.replay(found)

    def purge(self):
        """Somebody empties the dead-letter queue, and tells nobody."""
        self.dead.take([letter.id for letter in self.dead.list()])

    def replay(self, found):
        Replay(self.engine, open_ledger(self.engine, "operator", native_delay=False)).run(mark(self.engine, found), progress=lambda _: None)

    def check_running(self):
        keys = [running.asked.envelope.ordering_key for _, running in self.running]
        assert len(keys) == len(set(keys))

    @property
    def left(self):
        return {key for keys in self.sent.values() for key in keys} - self.ended - self.discarded

    def settle_down(self):
        """With handlers that do their work all jobs end that nobody has discarded: none is lost, and none waits for ever."""
        for name in WORKERS:
            self.die(name)
        for _ in range(6 * (1 + len(self.left))):
            if not self.left:
                return
            self.wait(LEASE + 1)
            self.relay.run_once()
            self.replay(list(letters(self.places, Choice())))
            self.receive(WORKERS[0])
            while self.running:
                self.end(0, "done", settled=True)
                self.receive(WORKERS[0])
        assert not self.left


places = st.integers(min_value=0, max_value=100)
workers = st.sampled_from(WORKERS)
steps = st.one_of(
    st.tuples(st.just(History.enqueue), st.sampled_from(KEYS), st.booleans()),
    st.tuples(st.just(History.relay_some)),
    st.tuples(st.just(History.receive), workers),
    st.tuples(st.just(History.end), places, st.sampled_from(ENDS), st.booleans()),
    st.tuples(st.just(History.wait), st.sampled_from([10.0, LEASE + 1])),
    st.tuples(st.just(History.die), workers),
    st.tuples(st.just(History.mend), st.booleans()),
    st.tuples(st.just(History.purge)),
)


@given(st.lists(steps, min_size=40, max_size=80))
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_no_job_starts_before_an_earlier_one_of_its_ordering_key_has_ended_and_all_end(history):
    here = History()
    try:
        for key in KEYS:
            for _ in range(3):
                here.enqueue(key, twin=False)
        here.relay_some()
        for step, *given in history:
            step(here, *given)
            here.check_running()
        here.settle_down()
    finally:
        here.close()
