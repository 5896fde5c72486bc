"""A subscription on RabbitMQ, against a broker that delivers and closes as a test tells it to."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest

from postroom.adapters.errors import ConfigurationError, LeaseLost, Unavailable
from postroom.adapters.rabbitmq.consumer import LONGEST_WAIT, RabbitConsumer
from postroom.adapters.rabbitmq.layout import Carrier
from postroom.adapters.rabbitmq.options import Options
from postroom.adapters.seam import Outcome, Verdict
from support.amqp import FakeConnection, fake_broker

EMAILS = Carrier(name="emails", dead_letter="emails.dlq")
CONFIRMED = Outcome(Verdict.CONFIRMED)


class Clock:
    """Time that passes when a test says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Graveyard:
    """A publisher that answers what it is told to, and keeps what it was given."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.posted = []

    def post(self, postings):
        self.posted += postings
        return [self.answers.pop(0)]


def consumer_of(*connections, carriers=(EMAILS,), weights=None, prefetch=50, clock=None, publisher=None):
    broker = fake_broker(*connections, publisher=publisher)
    weights = weights or {carrier.name: 1 for carrier in carriers}
    return RabbitConsumer(broker, carriers, weights=weights, prefetch=prefetch, name="worker", clock=clock or Clock())


def subscribed(*connections, limit=10, **options):
    """A consumer that has subscribed, and nothing has come yet."""
    consumer = consumer_of(*connections, **options)
    assert not consumer.receive(limit, 0)
    return consumer


@pytest.fixture
def connection():
    return FakeConnection()


def test_it_asks_for_as_many_as_its_caller_wants_in_hand(connection):
    consumer = subscribed(connection, limit=10)
    channel = connection.channel_now
    assert channel.said == [("qos", 10), ("consume", "emails")]
    for tag in range(1, 11):
        channel.deliver(tag, f"{tag}")
    consumer.receive(10, 0)
    consumer.receive(5, 0)  # fifteen, with those that are not settled
    assert channel.said[2:] == [("cancel", "worker emails 0"), ("qos", 15), ("consume", "emails")]


def test_it_asks_for_no_more_than_the_prefetch(connection):
    subscribed(connection, limit=1000, prefetch=7)
    assert connection.channel_now.said[0] == ("qos", 7)


def test_a_queue_with_more_weight_has_its_turns_ahead(connection):
    carriers = [Carrier(name=name, dead_letter="dlq") for name in ("high", "low")]
    subscribed(connection, carriers=carriers, weights={"high": 8, "low": 2}, limit=1)
    assert [channel.said[0] for channel in connection.channels] == [("qos", 4), ("qos", 1)]


def test_what_lies_idle_goes_back_and_no_more_come_than_are_wanted(connection):
    clock = Clock()
    consumer = subscribed(connection, limit=40, clock=clock)
    for tag in range(1, 41):
        connection.channel_now.deliver(tag, f"{tag}")
    (first,) = consumer.receive(1, 0)
    clock.now += LONGEST_WAIT - 1
    (second,) = consumer.receive(1, 0)
    assert connection.channel_now.settled == []
    clock.now += 2
    consumer.extend([first, second], 30)
    assert connection.channel_now.settled == [("nack", tag, True) for tag in range(3, 41)]
    assert connection.channel_now.said[-2:] == [("qos", 2), ("consume", "emails")]


def test_acks_of_a_whole_range_are_one_word(connection):
    consumer = subscribed(connection)
    for tag in range(1, 6):
        connection.channel_now.deliver(tag, f"{tag}")
    consumer.ack(consumer.receive(5, 0))
    assert connection.channel_now.settled == [("ack", 5, True)]


def test_a_range_never_covers_what_is_not_settled(connection):
    consumer = subscribed(connection)
    for tag in range(1, 7):
        connection.channel_now.deliver(tag, f"{tag}")
    one, two, three, four, five, six = consumer.receive(6, 0)
    consumer.ack([one, two, four])
    consumer.release([three])
    consumer.ack([six])
    consumer.ack([five])
    assert connection.channel_now.settled == [("ack", 2, True), ("ack", 4, False), ("nack", 3, True), ("ack", 6, False), ("ack", 5, True)]


def test_s002_an_ack_on_a_connection_that_has_gone_is_a_lost_lease_and_the_job_comes_again():
    gone, next_one = FakeConnection(), FakeConnection()
    consumer = subscribed(gone, next_one)
    gone.channel_now.deliver(1, "order-4711")
    (delivery,) = consumer.receive(1, 0)
    gone.lost = Unavailable("lost the connection")  # and nobody has been told yet
    with pytest.raises(LeaseLost):
        consumer.ack([delivery])
    gone.break_down()
    assert not consumer.receive(1, 0)
    next_one.channel_now.deliver(1, "order-4711")
    (again,) = consumer.receive(1, 0)
    consumer.ack([again])
    assert (gone.channel_now.settled, next_one.channel_now.settled) == ([], [("ack", 1, True)])


def test_s003_a_tag_from_before_a_reconnection_is_never_sent():
    before, after = FakeConnection(), FakeConnection()
    consumer = subscribed(before, after)
    before.channel_now.deliver(1, "job A")
    (job_a,) = consumer.receive(1, 0)
    before.break_down()
    assert not consumer.receive(1, 0)
    after.channel_now.deliver(1, "job B")
    (job_b,) = consumer.receive(1, 0)
    with pytest.raises(LeaseLost) as lost:
        consumer.ack([job_a])
    assert list(lost.value.lost) == [job_a]
    assert after.channel_now.settled == []
    consumer.ack([job_b])
    assert after.channel_now.settled == [("ack", 1, True)]


@pytest.mark.parametrize("ending", ["refusal", "cancel"])
def test_a_subscription_that_ended_is_told_in_the_log_and_opened_again(connection, ending, caplog):
    consumer = subscribed(connection)
    lost = connection.channel_now
    lost.deliver(1, "before")
    if ending == "refusal":
        lost.refuse(406, "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out")
    else:
        lost.cancel()
    assert not consumer.receive(1, 0)
    assert "lost the subscription to emails" in caplog.text
    connection.channel_now.deliver(1, "after")
    assert [delivery.message.id for delivery in consumer.receive(1, 0)] == ["after"]
    assert (len(connection.channels), lost.settled) == (2, [])


@pytest.mark.parametrize("ending", ["refusal", "cancel", "reconnection"])
def test_what_was_held_over_a_lost_subscription_takes_no_room_and_can_not_be_settled(connection, ending):
    next_one = FakeConnection()
    consumer = subscribed(connection, next_one, prefetch=1, limit=1)
    lost = connection.channel_now
    lost.deliver(1, "order-4711")
    (before,) = consumer.receive(1, 0)
    end = {"refusal": lambda: lost.refuse(406, "timed out"), "cancel": lost.cancel, "reconnection": connection.break_down}
    end[ending]()
    for settle in (consumer.ack, consumer.release):
        with pytest.raises(LeaseLost):
            settle([before])
    assert not consumer.receive(1, 0)
    again = (next_one if connection.lost else connection).channel_now
    again.deliver(1, "order-4711")
    (after,) = consumer.receive(1, 0)
    consumer.ack([after])
    assert (lost.settled, again.settled) == ([], [("ack", 1, True)])


def test_s006_what_waits_for_too_long_goes_back_and_is_not_begun(connection):
    clock = Clock()
    carriers = [Carrier(name=name, dead_letter="dlq") for name in ("high", "low")]
    consumer = subscribed(connection, carriers=carriers, weights={"high": 10, "low": 1}, limit=1, clock=clock)
    high, _ = connection.channels
    for tag in range(1, 11):  # a round of turns, fetched ahead
        high.deliver(tag, f"{tag}")
    handed_out = list(consumer.receive(1, 0))
    clock.now += LONGEST_WAIT + 1  # its handler takes so long, and its worker renews leases meanwhile
    consumer.extend(handed_out, 30)
    assert high.settled == [("nack", tag, True) for tag in range(2, 11)]
    consumer.ack(handed_out)
    assert not consumer.receive(1, 0)


def test_s006_a_delivery_waits_here_for_half_of_a_shorter_consumer_timeout(connection):
    clock = Clock()
    broker = fake_broker(connection, options=Options(hosts=(("broker", 5672),), consumer_timeout=20.0))
    consumer = RabbitConsumer(broker, [EMAILS], weights={"emails": 1}, prefetch=5, name="worker", clock=clock)
    assert not consumer.receive(2, 0)
    connection.channel_now.deliver(1, "handed out")
    connection.channel_now.deliver(2, "waits")
    handed_out = consumer.receive(1, 0)
    clock.now += 11
    consumer.extend(handed_out, 30)
    assert connection.channel_now.settled == [("nack", 2, True)]


def test_a_queue_that_can_not_be_subscribed_to_is_left_alone_for_longer_each_time_and_the_others_are_served(connection):
    clock, tried = Clock(), []
    carriers = [Carrier(name=name, dead_letter="dlq") for name in ("good", "bad")]
    consumer = subscribed(connection, carriers=carriers, clock=clock)
    good, bad = connection.channels
    consumer._broker.topology.restore = lambda _, name, partly: tried.append((name, clock.now)) or refuse(name, partly)  # noqa: SLF001
    bad.cancel()
    for tag in range(1, 301):
        good.deliver(tag, f"{tag}")
        (delivery,) = consumer.receive(1, 0)
        consumer.ack([delivery])
        clock.now += 0.1
    assert consumer.troubles == ["queue 'bad': it is gone"]
    pauses = [round(after - before, 1) for (_, before), (_, after) in itertools.pairwise(tried)]
    assert pauses[:5] == pytest.approx([0.5, 1.0, 2.0, 4.0, 5.0], abs=0.11)
    assert {name for name, _ in tried} == {"bad"}
    consumer._broker.topology.restore = lambda _, name, partly: Carrier(name=name, dead_letter="dlq")  # noqa: ARG005, SLF001
    clock.now += 5
    consumer.receive(1, 0)
    assert consumer.troubles == []


def refuse(name, _):
    raise ConfigurationError(f"queue {name!r}: it is gone")


def test_a_server_that_is_away_is_asked_once_for_all_queues():
    asked = []

    def get():
        asked.append("connect")
        raise Unavailable("can't connect to RabbitMQ at broker:5672")

    broker = replace(fake_broker(), control=SimpleNamespace(get=get, require_open=lambda: None))
    carriers = [Carrier(name=name, dead_letter="dlq") for name in ("high", "middle", "low")]
    consumer = RabbitConsumer(broker, carriers, weights={"high": 1, "middle": 1, "low": 1}, prefetch=5, name="worker")
    with pytest.raises(Unavailable, match="can't connect to RabbitMQ at broker:5672"):
        consumer.receive(1, 0)
    assert asked == ["connect"]


def test_a_letter_that_could_not_be_posted_is_the_very_same_one_the_next_time(connection):
    graveyard = Graveyard(Outcome(Verdict.UNKNOWN, "no answer"), CONFIRMED)
    consumer = subscribed(connection, publisher=graveyard)
    connection.channel_now.deliver(1, "order-4711")
    (delivery,) = consumer.receive(1, 0)
    with pytest.raises(Unavailable, match="no answer"):
        consumer.dead_letter(delivery, "no such address")
    assert connection.channel_now.settled == []
    consumer.dead_letter(delivery, "no such address")
    first, second = graveyard.posted
    assert (first.address, first.properties) == (second.address, second.properties)
    assert connection.channel_now.settled == [("ack", 1, True)]


class TestOrdered:
    """A queue whose keys have an order, in one partition."""

    @pytest.fixture
    def consumer(self, connection):
        return subscribed(connection, carriers=[Carrier(name="emails", partitions=1, dead_letter="emails.dlq")])

    @staticmethod
    def fill(connection, *names):
        for tag, name in enumerate(names, 1):
            connection.channel_now.deliver(tag, name, key=name[0])

    @staticmethod
    def received(consumer, limit=10):
        deliveries = consumer.receive(limit, 0)
        return [delivery.message.id for delivery in deliveries], list(deliveries)

    def test_of_each_key_one_is_handed_out(self, connection, consumer):
        self.fill(connection, "a1", "a2", "b1", "a3", "b2")
        names, (first, _) = self.received(consumer)
        assert names == ["a1", "b1"]
        consumer.ack([first])
        assert self.received(consumer)[0] == ["a2"]

    def test_a_released_one_stays_here_in_front_of_its_followers(self, connection, consumer):
        self.fill(connection, "a1", "a2")
        _, (first,) = self.received(consumer)
        consumer.release([first])
        names, (again,) = self.received(consumer)
        assert names == ["a1"]
        with pytest.raises(LeaseLost):
            consumer.ack([first])
        consumer.ack([again])
        assert connection.channel_now.settled == [("ack", 1, True)]

    def test_a_partition_is_not_subscribed_to_again_for_more(self, connection, consumer):
        consumer.receive(40, 0)
        assert [said for said in connection.channel_now.said if said[0] == "cancel"] == []
