"""Workers and relays on real brokers, killed with SIGKILL at every place where it could matter: one suite for all brokers."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen

import pika.exceptions
import pytest

from support.crashes import SHORT_LEASE, SLACK, VICTIM, Broker, Crash, Layout, Point, Scene, scene
from support.rabbit import raw
from support.workers import eventually

RABBITMQ = Broker(name="RabbitMQ", fixture="rabbitmq_url", url="{server}", redelivery=0.0)
_QUICK = "partitions=3&session.timeout.ms=6000&heartbeat.interval.ms=500"
CLASSIC = Broker(name="Kafka", fixture="kafka_bootstrap", url=f"kafka://{{server}}?{_QUICK}", redelivery=6.0)
SHARE = Broker(name="Kafka share", fixture="kafka_bootstrap", url="kafka://{server}?partitions=3&mode=share", redelivery=15.0, in_rounds=True)

IN_THE_HANDLER = Point(name="in the handler", attempts=1, again="starts")
BEFORE_THE_ACK = Point(name="after the commit of effect and done, before the ack")
AFTER_THE_RE_ARM = Point(name="after the re-arm, before the ack", fate={"fails_first": True}, attempts=1)
POINTS = (
    Point(name="after delivery, before begin", again="starts"),
    Point(name="after begin, before the handler", again="starts"),
    IN_THE_HANDLER,
    BEFORE_THE_ACK,
    Point(name="after the ack, before it is sent"),
    AFTER_THE_RE_ARM,
    Point(name="after the dead letter's confirm, before the ack", fate={"hopeless": True}, attempts=1, status="failed"),
)

ALL = [
    Layout(database=database, consumers=consumers, prefetched=prefetched)
    for database, consumers, prefetched in itertools.product(("sqlite", "postgresql"), (1, 3), (False, True))
]
PAIRWISE = [layout for layout in ALL if ((layout.database == "sqlite") + (layout.consumers == 3) + layout.prefetched) % 2 == 0]
"""Each value of each with each of the others, in half as many."""


def opposites(number: int) -> list[Layout]:
    """Two layouts that have nothing in common, so between them everything; others for another number."""
    return [ALL[number % 4], ALL[7 - number % 4]]


# RabbitMQ notices a death at once: it has every pair of database, consumers and single/prefetched at each point. Kafka takes seconds to notice: there
# each point has two opposite layouts, others at each, so that each value comes with each point, and each pair of values with some points. What is
# left out are combinations of three values, which no part of the worker looks at together.
CRASHES = [
    *(Crash(point=point, broker=RABBITMQ, layout=layout) for point in POINTS for layout in PAIRWISE),
    *(
        Crash(point=point, broker=broker, layout=layout)
        for broker in (CLASSIC, SHARE)
        for number, point in enumerate(POINTS)
        for layout in opposites(number)
    ),
]
RE_ARMED = [crash for crash in CRASHES if crash.point is AFTER_THE_RE_ARM]
# When supervisor and children die together, the lease is all there is. In a death outside of the handler nothing differs from that of a child alone
# but this, so it is shown where the attempt was lost and where it was stored.
DISASTERS = [
    Crash(point=point, broker=broker, layout=layout, family=True)
    for broker in (RABBITMQ, CLASSIC, SHARE)
    for number, point in enumerate((IN_THE_HANDLER, BEFORE_THE_ACK))
    for layout in opposites(number + 2)
]


@pytest.fixture
def crashing(crash: Crash, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    database = request.getfixturevalue(f"{crash.layout.database}_database_url")
    server = request.getfixturevalue(crash.broker.fixture)
    with scene(crash, database, server, tmp_path / "flags", forget) as made:
        yield made


def forget(broker: str, queue: str) -> None:
    """On RabbitMQ each queue has files open; a topic may stay until its container goes."""
    if broker.startswith("amqp"):
        with suppress(pika.exceptions.AMQPError), raw(broker) as channel:
            channel.queue_delete(queue)
            channel.queue_delete(f"{queue}.dlq")


@pytest.mark.parametrize("crash", [crash for crash in CRASHES if crash not in RE_ARMED], ids=str)
def test_s088_s089_s105_a_worker_killed_anywhere_loses_nothing_does_nothing_twice_and_is_not_waited_for(crashing: Scene) -> None:
    with doomed_workers(crashing) as supervisors:
        eventually(crashing.is_over)
        crashing.stop(supervisors)
    assert_all_is_well(crashing)


@pytest.mark.parametrize("crash", RE_ARMED, ids=str)
def test_s119_a_worker_killed_between_the_copy_for_the_retry_and_the_ack_runs_the_job_once_more_and_no_oftener(crashing: Scene) -> None:
    with doomed_workers(crashing) as supervisors:
        eventually(crashing.is_over)
        crashing.stop(supervisors)
    assert_all_is_well(crashing)
    assert crashing.starts[VICTIM] == 2, "the original that came again was not run"


POISON = Point(name="at each start of its handler", fate={"deadly": True}, attempts=3, status="failed")
POISONED = [
    Crash(point=POISON, broker=broker, layout=Layout(database="sqlite", consumers=1, prefetched=True)) for broker in (RABBITMQ, CLASSIC, SHARE)
]


@pytest.mark.parametrize("crash", POISONED, ids=str)
def test_s109_s110_a_job_that_kills_its_process_each_time_is_a_dead_letter_after_its_attempts_and_its_neighbours_are_done(crashing: Scene) -> None:
    crashing.enqueue([VICTIM], **POISON.fate)
    crashing.enqueue(f"neighbour-{number}" for number in range(10))
    crashing.publish()
    with crashing.workers() as supervisors:
        for attempt in range(1, POISON.attempts + 1):
            eventually(lambda attempt=attempt: crashing.starts[VICTIM] == attempt)
        eventually(lambda: crashing.depth["failed"] == 1 and crashing.depth["pending"] == 0 and not crashing.left_in_the_outbox())
        eventually(lambda: len(crashing.effects()) == 10)
        crashing.stop(supervisors)
    assert_nothing_is_lost_or_left(crashing)
    assert crashing.starts[VICTIM] == POISON.attempts
    charged = {key: (entry.attempts, entry.last_error) for key, entry in crashing.entries().items() if entry.attempts}
    assert charged == {VICTIM: (POISON.attempts, "worker lost")}
    [letter] = crashing.here.adapter.dead_letters(crashing.queue.name).list()
    assert (letter.reason, letter.attempts) == ("given up after 3 attempts: worker lost", POISON.attempts)


@pytest.mark.parametrize("crash", DISASTERS, ids=str)
def test_s105_when_supervisor_and_worker_are_killed_together_the_job_comes_back_with_the_lease(crashing: Scene) -> None:
    with doomed_workers(crashing) as supervisors:
        eventually(lambda: any(process.poll() is not None for process in supervisors))
        with crashing.family() as successor:
            eventually(lambda: crashing.ready > crashing.crash.layout.consumers)
            eventually(crashing.is_over)
            crashing.stop([*supervisors, successor])
    assert_all_is_well(crashing)


@contextmanager
def doomed_workers(crashing: Scene) -> Iterator[Sequence[Popen[str]]]:
    """Workers one of which has just been killed, with a fair share of other jobs in its hands if it prefetches."""
    crash = crashing.crash
    in_advance = crash.broker.in_rounds or not crash.layout.prefetched
    if in_advance:  # so that they come together
        enqueue(crashing)
        crashing.publish()
    with crashing.workers() as supervisors:
        if not in_advance:
            crashing.enqueue(f"earlier-{number}" for number in range(24))  # so that it looks ahead
            eventually(lambda: len(crashing.effects()) == 24)
            enqueue(crashing, victim_is_there=lambda: eventually(lambda: "received" in {line["what"] for line in crashing.of_the_victim()}))
        eventually(lambda: crashing.killed)
        yield supervisors


def enqueue(crashing: Scene, victim_is_there: Callable[[], object] = lambda: None) -> None:
    """The victim first. Where there are many, every other one is done before it, out of order."""
    crashing.enqueue([VICTIM], **crashing.crash.point.fate)
    victim_is_there()
    for number in range(40 if crashing.crash.layout.prefetched else 5):
        crashing.enqueue([f"neighbour-{number}"], patient=crashing.crash.layout.prefetched and number % 2 == 0)


def assert_all_is_well(crashing: Scene) -> None:
    assert_the_kill_was_as_planned(crashing)
    assert_nothing_is_lost_or_left(crashing)
    assert_who_had_to_pay(crashing)


def assert_the_kill_was_as_planned(crashing: Scene) -> None:
    """At its place, with others in hand, and noticed in time."""
    crash, killed = crashing.crash, crashing.killed
    assert killed is not None
    assert killed["point"] == crash.point.name
    company = [line["held"] for line in crashing.journal if line["what"] == "company" and line["pid"] == killed["pid"]]
    assert max(map(len, company)) >= crash.layout.company
    if crash.point.name != "after the ack, before it is sent":  # by then the others may be gone; before it, some of them
        assert len(killed["held"]) > crash.layout.prefetched
    if not crash.layout.prefetched:
        assert len(killed["held"]) <= 1
    seconds = crashing.after_the_kill(crash.point.again)
    assert seconds is not None
    assert seconds <= crash.broker.redelivery + SHORT_LEASE * crash.family + SLACK


def assert_nothing_is_lost_or_left(crashing: Scene) -> None:
    """Each job ended as it had to, with one effect for each key that was not given up, and nothing is under way."""
    point, entries = crashing.crash.point, crashing.entries()
    assert {key: entry.status for key, entry in entries.items()} == dict.fromkeys(crashing.keys, "done") | {VICTIM: point.status}
    assert crashing.effects() == {key: 1 for key in crashing.keys if entries[key].status == "done"}
    assert crashing.left_in_the_outbox() == []
    assert crashing.depth["pending"] == 0
    letters = crashing.here.adapter.dead_letters(crashing.queue.name).list()
    assert {letter.message.headers["postroom-key"] for letter in letters} == {key for key, entry in entries.items() if entry.status == "failed"}


def assert_who_had_to_pay(crashing: Scene) -> None:
    """The victim for what it did, at most; nobody who had not been run."""
    crash, entries = crashing.crash, crashing.entries()
    attempts = {key: entry.attempts for key, entry in entries.items()}
    victim = attempts.pop(VICTIM)
    assert victim <= crash.point.attempts
    if not crash.layout.prefetched:  # else nobody knows which of those that ran killed it
        assert victim == crash.point.attempts
    assert {key for key, charged in attempts.items() if charged} <= crashing.chargeable()
    assert max(attempts.values()) <= 1
    assert max(entry.attempts for entry in entries.values()) <= max(entry.max_attempts for entry in entries.values())
    assert max(crashing.starts.values()) <= entries[VICTIM].max_attempts


RELAYS = (Point(name="relay: between publish and confirm"), Point(name="relay: between confirm and mark"))
# Both Kafka modes publish in the same way: the share group is on the consumers' side only. So for relays there are two brokers.
RELAY_CRASHES = [
    *(Crash(point=point, broker=RABBITMQ, layout=layout) for point in RELAYS for layout in PAIRWISE),
    *(Crash(point=point, broker=CLASSIC, layout=layout) for number, point in enumerate(RELAYS) for layout in opposites(number)),
]


@pytest.mark.parametrize("crash", RELAY_CRASHES, ids=str)
def test_s062_s063_a_relay_killed_before_it_has_marked_what_is_sent_loses_nothing_and_what_comes_twice_is_done_once(crashing: Scene) -> None:
    batch = 50 if crashing.crash.layout.prefetched else 1
    crashing.enqueue([VICTIM, *(f"neighbour-{number}" for number in range(19))])
    assert crashing.relay(batch=batch, lease=SHORT_LEASE) == -signal.SIGKILL
    killed = crashing.killed
    assert killed is not None
    assert (killed["point"], len(crashing.left_in_the_outbox())) == (crashing.crash.point.name, 20), "nothing is marked that was not confirmed"
    with crashing.workers() as supervisors:
        eventually(crashing.is_over)
        crashing.stop(supervisors)
    assert_each_is_done_once(crashing)


def assert_each_is_done_once(crashing: Scene) -> None:
    """Without an attempt, and under the id that it always had, however often it came."""
    entries = crashing.entries()
    assert {(entry.status, entry.attempts) for entry in entries.values()} == {("done", 0)}
    assert crashing.effects() == dict.fromkeys(crashing.keys, 1)
    assert (crashing.left_in_the_outbox(), crashing.depth["pending"], crashing.depth["failed"]) == ([], 0, 0)
    arrived = {(line["key"], line["id"]) for line in crashing.journal if line["what"] == "received"}
    assert sorted(key for key, _ in arrived) == sorted(crashing.keys)
    assert (crashing.after_the_kill("received") or 0.0) <= SHORT_LEASE + SLACK
