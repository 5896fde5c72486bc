"""The memory adapter: the sentences of the two documents it was built from, and what the conformance suite leaves open."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from postroom.adapters import Closed, ConfigurationError, LeaseLost, Message, Queue, TopologyMismatch, Verdict
from postroom.adapters.memory import Memory
from postroom.adapters.weights import Turns

PATIENCE = 30.0
LEASE = 30.0
EMAILS = Queue(name="emails", lease=LEASE)


class Clock:
    """A clock that the test moves."""

    def __init__(self, now=1_000.0):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def memory(clock):
    memory = Memory(clock=clock)
    memory.ensure([EMAILS])
    yield memory
    memory.close()


def email(job="job-1", order=4711, **options):
    return Message(id=job, queue="emails", body=json.dumps({"order_id": order}).encode(), **options)


def worker(memory, name="w1", queue=EMAILS, prefetch=10):
    return memory.consume(queue.carriers, group="mailers", prefetch=prefetch, name=name)


def names(deliveries):
    return [delivery.message.id for delivery in deliveries]


class EmailHandler:
    """The handler's side of the bargain: it asks and records by the order, never by the job."""

    def __init__(self):
        self.sent = []

    def __call__(self, delivery):
        order = json.loads(delivery.message.body)["order_id"]
        if order not in self.sent:
            self.sent.append(order)


def test_an_empty_queue_gives_nothing_not_an_error(memory):
    assert worker(memory).receive(10, 0) == []


def test_jobs_run_oldest_first(memory):
    memory.publish([email("a"), email("b")])
    memory.publish([email("c")])
    assert names(worker(memory).receive(10, 0)) == ["a", "b", "c"]


def test_two_takes_never_return_the_same_running_job(memory):
    memory.publish([email()])
    assert names(worker(memory, "w1").receive(1, 0)) + names(worker(memory, "w2").receive(1, 0)) == ["job-1"]


def test_enqueue_dequeue_ack_and_then_dequeue_returns_nothing(memory):
    memory.publish([email()])
    consumer = worker(memory)
    consumer.ack(consumer.receive(1, 0))
    assert consumer.receive(1, 0) == []
    assert memory.depth("emails") == {"pending": 0, "running": 0, "failed": 0}


def test_the_worker_dies_after_sending_and_before_the_ack_and_one_email_is_sent(memory, clock):
    handle, dying = EmailHandler(), worker(memory, "dying")
    memory.publish([email(order=4711)])
    (first,) = dying.receive(1, 0)
    assert first.attempts == 0
    handle(first)
    clock.now += LEASE + 1
    second_worker = worker(memory, "second")
    (second,) = second_worker.receive(1, 0)
    assert (second.message.id, second.attempts) == ("job-1", 1)
    handle(second)
    second_worker.ack([second])
    assert handle.sent == [4711]
    with pytest.raises(LeaseLost):
        dying.ack([first])


def test_same_job_id_twice_one_effect_both_acked():
    broker = Memory(native_delay=False)
    broker.ensure([EMAILS])
    broker.publish([email(), email()])
    handle, consumer = EmailHandler(), worker(broker)
    deliveries = consumer.receive(10, 0)
    for delivery in deliveries:
        handle(delivery)
        consumer.ack([delivery])
    assert (names(deliveries), handle.sent) == (["job-1", "job-1"], [4711])
    assert broker.depth("emails") == {"pending": 0, "running": 0, "failed": 0}


def test_running_the_email_handler_twice_for_order_4711_sends_one_email(memory):
    memory.publish([email()])
    handle, consumer = EmailHandler(), worker(memory)
    (delivery,) = consumer.receive(1, 0)
    handle(delivery)
    handle(delivery)
    assert handle.sent == [4711]


def test_two_different_jobs_about_order_4711_one_email(memory):
    memory.publish([email("job-1"), email("job-2")])
    handle, consumer = EmailHandler(), worker(memory)
    for delivery in consumer.receive(10, 0):
        handle(delivery)
        consumer.ack([delivery])
    assert handle.sent == [4711]


def test_dead_letter_after_n_attempts(memory, clock):
    memory.publish([email(max_attempts=3)])
    for attempt in (0, 1, 2):
        (delivery,) = worker(memory).receive(1, 0)
        assert delivery.attempts == attempt
        clock.now += LEASE + 1
    assert worker(memory).receive(1, 0) == []
    (letter,) = memory.dead_letters("emails").list()
    assert (letter.message.id, letter.attempts, letter.reason) == ("job-1", 3, "lease expired")


def test_a_message_id_the_queue_still_holds_is_confirmed_and_kept_once(memory):
    outcomes = memory.publish([email(), email()])
    assert [outcome.verdict for outcome in outcomes] == [Verdict.CONFIRMED, Verdict.CONFIRMED]
    consumer = worker(memory)
    (delivery,) = consumer.receive(10, 0)
    memory.publish([email()])
    assert consumer.receive(10, 0) == []
    consumer.ack([delivery])
    memory.publish([email()])
    assert names(consumer.receive(10, 0)) == ["job-1"]


def test_a_publisher_that_changes_its_headers_later_changes_nothing_here(memory):
    headers = {"tenant": "north"}
    memory.publish([email(headers=headers)])
    headers["tenant"] = "south"
    (delivery,) = worker(memory).receive(1, 0)
    assert delivery.message.headers == {"tenant": "north"}


def test_a_delivery_of_one_consumer_is_not_settled_by_another(memory):
    memory.publish([email()])
    deliveries = worker(memory, "w1").receive(1, 0)
    with pytest.raises(LeaseLost, match="no longer held by this consumer: job-1"):
        worker(memory, "w2").ack(deliveries)


def test_retries_and_delayed_jobs_join_the_line_when_they_are_due(memory, clock):
    consumer = worker(memory, prefetch=1)
    memory.publish([email("retried"), email("delayed", delay=10)])
    consumer.fail(consumer.receive(1, 0)[0], "smtp is down", 5)
    clock.now += 7
    memory.publish([email("third")])
    clock.now += 7
    order = []
    while deliveries := consumer.receive(1, 0):
        consumer.ack(deliveries)
        order += names(deliveries)
    assert order == ["retried", "third", "delayed"]


def test_weights_are_kept_to_the_job(memory):
    queue = Queue(name="mail", priorities={"high": 3, "low": 1})
    memory.ensure([queue])
    memory.publish([Message(id=f"{part}-{number}", queue=f"mail.{part}", body=b"") for number in range(4) for part in ("low", "high")])
    served = [name.partition("-")[0] for name in names(worker(memory, queue=queue).receive(8, 0))]
    assert served == ["high", "high", "low", "high", "high", "low", "low", "low"]


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (lambda memory, _held, _holder: memory.publish([email("new")]), ["new"]),
        (lambda _memory, held, holder: holder.release(held), ["held"]),
        (lambda _memory, held, holder: holder.fail(held[0], "smtp is down"), ["held"]),
        (lambda memory, _held, _holder: memory.abandon("holder"), ["held"]),
        (lambda _memory, _held, holder: holder.close(), ["held"]),
    ],
    ids=["publish", "release", "fail", "abandon", "close"],
)
def test_whoever_waits_is_woken_by(memory, event, expected):
    memory.publish([email("held")])
    holder = worker(memory, "holder")
    held = holder.receive(1, 0)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(worker(memory, "waiting").receive, 1, PATIENCE)
        event(memory, held, holder)
        assert names(waiting.result(PATIENCE)) == expected


def test_a_consumer_that_is_full_gets_more_as_soon_as_it_settles(memory):
    memory.publish([email("a"), email("b")])
    consumer = worker(memory, prefetch=1)
    held = consumer.receive(10, 0)
    assert consumer.receive(10, 0) == []
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(consumer.receive, 1, PATIENCE)
        consumer.ack(held)
        assert names(waiting.result(PATIENCE)) == ["b"]


def test_by_the_real_clock_a_waiting_consumer_gets_a_delayed_job_and_an_expired_one():
    memory = Memory()
    queue = Queue(name="emails", lease=0.05)
    memory.ensure([queue])
    memory.publish([email(delay=0.05)])
    waiting = worker(memory, queue=queue)
    (first,) = waiting.receive(1, PATIENCE)
    (again,) = waiting.receive(1, PATIENCE)
    assert (first.message, first.attempts + 1) == (again.message, again.attempts)


def test_closing_the_adapter_ends_every_wait(memory):
    consumer = worker(memory)
    begun = threading.Event()

    def wait():
        begun.set()
        return consumer.receive(1, PATIENCE)

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(wait)
        begun.wait(PATIENCE)
        memory.close()
        with pytest.raises(Closed):
            waiting.result(PATIENCE)


def test_a_memory_that_stands_for_a_broker_has_no_delay_to_offer():
    broker = Memory(native_delay=False)
    broker.ensure([EMAILS])
    assert not broker.capabilities.native_delay
    with pytest.raises(ConfigurationError, match="publish it when it is due"):
        broker.publish([email("a"), email("b", delay=1)])
    assert broker.depth("emails")["pending"] == 0


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (replace(EMAILS, ordered=True), "queue 'emails': expected ordered True, but it is there with ordered False"),
        (replace(EMAILS, lease=60.0), "queue 'emails': expected lease 60.0, but it is there with lease 30.0"),
        (replace(EMAILS, dead_letter="graves"), "queue 'emails': expected dead_letter 'graves', but it is there with dead_letter ''"),
    ],
    ids=["ordered", "lease", "dead letter"],
)
def test_another_declaration_of_a_queue_is_told_in_one_line(memory, other, told):
    with pytest.raises(TopologyMismatch) as mismatch:
        memory.ensure([other])
    assert str(mismatch.value) == told


def test_two_queues_of_one_call_that_contradict_each_other_declare_nothing(memory):
    with pytest.raises(ConfigurationError):
        memory.ensure([Queue(name="new"), Queue(name="new", ordered=True)])
    with pytest.raises(TopologyMismatch, match="queue 'new': expected it to be declared, and it is not there"):
        memory.ensure([Queue(name="new")], passive=True)


def test_a_weight_share_goes_to_those_that_are_ready_only():
    turns = Turns({"high": 3, "mid": 2, "low": 1})
    assert turns.share(6, ["high", "mid", "low"]) == {"high": 3, "mid": 2, "low": 1}
    assert turns.share(4, ["low"]) == {"low": 4}
    assert turns.share(4, []) == {}


def test_turns_are_smooth_and_the_absent_save_nothing_up():
    turns = Turns({"a": 5, "b": 1, "c": 1})
    assert "".join(turns.pick("abc") for _ in range(7)) == "aabacaa"
    assert "".join(turns.pick("bc") for _ in range(6)) in {"bcbcbc", "cbcbcb"}
    assert "".join(turns.pick("abc") for _ in range(7)).count("a") == 5
