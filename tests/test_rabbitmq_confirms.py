"""What becomes of messages on their way to RabbitMQ, against a broker that answers as a test tells it to."""

from __future__ import annotations

import uuid

import pytest
from pika import BasicProperties, SelectConnection

from postroom.adapters.rabbitmq.confirms import WINDOW, Confirms
from postroom.adapters.rabbitmq.content import encode, encoded
from postroom.adapters.rabbitmq.options import Options
from postroom.adapters.rabbitmq.postings import Posting
from postroom.adapters.rabbitmq.publisher import Publisher
from postroom.adapters.seam import Message, Verdict
from support.amqp import FakeConnection

SILENCE = 0.01
TOO_LARGE = "PRECONDITION_FAILED - message size 2048 is larger than configured max size 1024"


def posting(name, body=b"{}", *, queue="emails"):
    return Posting("postroom", queue, name, encode(Message(id=name, queue=queue, body=body)), body)


def postings(count):
    return [posting(f"{number}") for number in range(count)]


def publish(confirms, messages):
    return [outcome.verdict for outcome in confirms.publish(messages, SILENCE)]


def confirm_all(connection):
    connection.channel_now.confirm(len(connection.published), multiple=True)


@pytest.fixture
def connection():
    return FakeConnection(answer=confirm_all)


@pytest.fixture
def confirms(connection):
    return Confirms.on(connection)


def test_a_message_is_sent_mandatory_and_persistent_with_its_id(connection, confirms):
    assert publish(confirms, [posting("order-4711", b"\x00\xff")]) == [Verdict.CONFIRMED]
    (sent,) = connection.published
    assert (sent.exchange, sent.routing_key, sent.mandatory, sent.body) == ("postroom", "emails", True, b"\x00\xff")
    assert (sent.properties.message_id, sent.properties.delivery_mode) == ("order-4711", 2)


@pytest.mark.parametrize("size", [0, 1, 131064, 131065, 1_000_000])
def test_a_body_of_any_size_is_cut_into_frames_that_fit(connection, confirms, size):
    body = bytes(size)
    assert publish(confirms, [posting("1", body)]) == [Verdict.CONFIRMED]
    assert connection.published[0].body == body


def test_confirms_may_come_one_by_one_in_ranges_and_out_of_order(connection, confirms):
    def answer(connection):
        channel = connection.channel_now
        channel.confirm(3)
        channel.nack(5)
        channel.confirm(2, multiple=True)
        channel.confirm(6, multiple=True)

    connection.answer = answer
    assert publish(confirms, postings(6)) == [Verdict.CONFIRMED] * 4 + [Verdict.BUSY, Verdict.CONFIRMED]


def test_no_more_than_the_window_is_under_way(connection, confirms):
    under_way = []

    def answer(connection):
        under_way.append(len(connection.published))
        confirm_all(connection)

    connection.answer = answer
    assert set(publish(confirms, postings(2 * WINDOW + 1))) == {Verdict.CONFIRMED}
    assert under_way == [WINDOW, 2 * WINDOW, 2 * WINDOW + 1]


def test_a_return_belongs_to_its_own_message_though_another_has_the_same_id(connection, confirms):
    def answer(connection):
        lost = connection.published[1]
        connection.channel_now.give_back(lost)
        connection.channel_now.confirm(3, multiple=True)

    connection.answer = answer
    messages = [posting("1"), posting("1", queue="nowhere"), posting("1")]
    assert publish(confirms, messages) == [Verdict.CONFIRMED, Verdict.BUSY, Verdict.CONFIRMED]


def test_a_return_of_a_message_without_an_id_is_known_too(connection, confirms):
    def answer(connection):
        connection.channel_now.give_back(connection.published[0])
        confirm_all(connection)

    connection.answer = answer
    assert publish(confirms, [Posting("", "graves", "", encoded(BasicProperties()), b"foreign")]) == [Verdict.BUSY]


def test_the_doors_of_pika_that_it_does_not_show_are_still_there():
    assert callable(SelectConnection._output_marshaled_frames)  # noqa: SLF001
    assert callable(SelectConnection._terminate_stream)  # noqa: SLF001


def test_a_missing_exchange_is_no_ones_fault(connection, confirms):
    connection.answer = lambda connection: connection.channel_now.refuse(404, "NOT_FOUND - no exchange 'postroom' in vhost '/'")
    assert publish(confirms, postings(2)) == [Verdict.BUSY] * 2


def test_a_refusal_that_may_be_for_any_of_several_is_nobodys(connection, confirms):
    connection.answer = lambda connection: connection.channel_now.refuse(406, "PRECONDITION_FAILED - something about one of them")
    assert publish(confirms, postings(2)) == [Verdict.UNKNOWN] * 2
    assert publish(confirms, postings(1)) == [Verdict.REFUSED]


def test_s010_a_channel_killed_by_one_message_charges_only_that_one(connection, confirms):
    messages = [posting("0", bytes(2048)), *postings(100)[1:]]
    connection.answer = lambda connection: connection.channel_now.refuse(406, TOO_LARGE)
    assert publish(confirms, messages) == [Verdict.REFUSED] + [Verdict.UNKNOWN] * 99
    connection.published.clear()
    connection.answer = confirm_all
    assert publish(confirms, [message.copy() for message in messages[1:]]) == [Verdict.CONFIRMED] * 99
    assert [sent.properties.message_id for sent in connection.published] == [f"{number}" for number in range(1, 100)]
    assert len(connection.channels) == 2


def test_once_the_largest_size_is_known_no_larger_message_is_sent(connection, confirms):
    connection.answer = lambda connection: connection.channel_now.refuse(406, TOO_LARGE)
    publish(confirms, [posting("0", bytes(2048))])
    connection.published.clear()
    connection.answer = confirm_all
    assert publish(confirms, [posting("1"), posting("2", bytes(1025)), posting("3", bytes(1024))]) == [
        Verdict.CONFIRMED,
        Verdict.REFUSED,
        Verdict.CONFIRMED,
    ]


def test_headers_larger_than_a_frame_are_refused_before_they_end_the_connection(connection, confirms):
    message = Message(id="1", queue="emails", body=b"", headers={"trace": "x" * connection.frame_max})
    assert publish(confirms, [Posting("postroom", "emails", "1", encode(message), b"")]) == [Verdict.REFUSED]
    assert not connection.published


def test_a_lost_connection_leaves_what_was_not_confirmed_unknown(connection, confirms):
    def answer(connection):
        connection.channel_now.confirm(1)
        connection.break_down()

    connection.answer = answer
    assert publish(confirms, postings(3)) == [Verdict.CONFIRMED, Verdict.UNKNOWN, Verdict.UNKNOWN]
    assert publish(confirms, postings(1)) == [Verdict.UNKNOWN]


def test_a_broker_that_confirms_nothing_is_given_up_on_and_one_that_says_nothing_at_all_is_hung_up_on(connection, confirms):
    connection.answer = lambda connection: setattr(connection, "bytes_received", connection.bytes_received + 8)
    assert publish(confirms, postings(1)) == [Verdict.UNKNOWN]
    assert connection.aborted is None
    connection.answer = lambda _: None
    assert publish(confirms, [posting("other")]) == [Verdict.UNKNOWN]
    assert connection.aborted is not None


def test_what_is_sent_again_while_it_is_under_way_is_not_sent_twice(connection, confirms):
    connection.answer = lambda _: None
    assert publish(confirms, postings(3)) == [Verdict.UNKNOWN] * 3
    connection.channel_now.confirm(1)  # too late for the first call
    connection.answer = confirm_all
    assert publish(confirms, [*postings(2), posting("new")]) == [Verdict.CONFIRMED] * 3
    assert [sent.properties.message_id for sent in connection.published] == ["0", "1", "2", "new"]


def test_another_message_of_the_same_id_is_sent(connection, confirms):
    connection.answer = lambda _: None
    publish(confirms, [posting("1", b"first")])
    connection.answer = confirm_all
    assert publish(confirms, [posting("1", b"second")]) == [Verdict.CONFIRMED]
    assert [sent.body for sent in connection.published] == [b"first", b"second"]


def test_an_alarm_answers_everyone_at_once_and_sends_nothing_more(connection, confirms):
    connection.answer = lambda connection: connection.block("low on memory")
    (outcome,) = confirms.publish(postings(1), 60)
    assert (outcome.verdict, "low on memory" in outcome.reason) == (Verdict.UNKNOWN, True)
    assert publish(confirms, postings(2)) == [Verdict.UNKNOWN] * 2
    assert len(connection.published) == 1
    connection.block("")
    connection.answer = confirm_all
    assert publish(confirms, postings(2)) == [Verdict.CONFIRMED] * 2
    assert [sent.properties.message_id for sent in connection.published] == ["0", "1"]


class FakeLink:
    """The publishing end of an adapter, on a broker of the test's own."""

    def __init__(self, confirms):
        self._confirms = confirms

    def get(self):
        return self._confirms


@pytest.fixture
def publisher(confirms):
    return Publisher(Options(hosts=(("broker", 5672),), confirm_timeout=SILENCE), FakeLink(confirms))


@pytest.mark.parametrize("value", [1.5, uuid.uuid4(), 2**63, (1, 2), "half a pair \ud800"])
def test_s017_a_header_that_amqp_can_not_carry_is_refused_and_its_neighbours_are_sent(connection, publisher, value):
    connection.answer = lambda connection: connection.channel_now.confirm(len(connection.published), multiple=True)
    good = Message(id="1", queue="emails", body=b"{}")
    bad = Message(id="2", queue="emails", body=b"{}", headers={"fine": 1, "odd": value})
    outcomes = publisher.publish([bad, good, bad])
    assert [outcome.verdict for outcome in outcomes] == [Verdict.REFUSED, Verdict.CONFIRMED, Verdict.REFUSED]
    assert outcomes[0].reason.startswith("headers['odd']")


@pytest.mark.parametrize(
    "message", [Message(id="x" * 256, queue="emails", body=b""), Message(id="1", queue="emails", body=b"", headers={"n" * 256: 1})]
)
def test_names_longer_than_amqp_has_room_for_are_refused(publisher, message):
    (outcome,) = publisher.publish([message])
    assert outcome.verdict is Verdict.REFUSED


def test_the_first_message_to_a_new_queue_finds_out_whether_it_is_ordered(connection, publisher):
    def answer(connection):
        for tag, sent in enumerate(connection.published, 1):
            if sent.routing_key == "emails":
                connection.channel_now.give_back(sent)
            connection.channel_now.confirm(tag)

    connection.answer = answer
    messages = [Message(id=f"{number}", queue="emails", body=b"", ordering_key="a") for number in range(3)]
    assert {outcome.verdict for outcome in publisher.publish(messages)} == {Verdict.CONFIRMED}
    keys = [sent.routing_key for sent in connection.published]
    assert keys[0] == "emails"
    assert len(set(keys[1:])) == 1
    assert keys[1].startswith("emails#")
    assert [sent.properties.message_id for sent in connection.published] == ["0", "0", "1", "2"]
