"""What is declared on a RabbitMQ server, and what is found there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from postroom.adapters import connect
from postroom.adapters.errors import AccessDenied, TopologyMismatch
from postroom.adapters.seam import Message, Queue, Verdict
from support.rabbit import raw


@pytest.fixture
def adapter(rabbitmq_url, opened):
    return opened(rabbitmq_url)


@pytest.fixture
def other(rabbitmq_url, opened):
    """The adapter of another process: it has declared nothing."""
    return opened(rabbitmq_url)


def publish(adapter, queue, name="order-4711", **options):
    (outcome,) = adapter.publish([Message(id=name, queue=queue, body=b"{}", **options)])
    return outcome.verdict


def drain(adapter, queue, count):
    consumer = adapter.consume({queue: 1}, group="tests", prefetch=100, name="drain")
    received = []
    while len(received) < count:
        deliveries = consumer.receive(100, 30)
        received += [delivery.message.id for delivery in deliveries]
        consumer.ack(deliveries)
    consumer.close()
    return received


def test_s016_a_plain_queue_that_is_there_already_is_one_clear_error(rabbitmq_url, adapter, name, caplog):
    with raw(rabbitmq_url) as channel:
        channel.queue_declare(name, durable=True)
    with pytest.raises(TopologyMismatch) as mismatch:
        adapter.ensure([Queue(name=name)])
    assert str(mismatch.value) == f"queue {name!r}: expected x-dead-letter-exchange '', but it is there with x-dead-letter-exchange none"
    assert not caplog.records
    other = Queue(name=f"{name}-2")
    adapter.ensure([other])  # the channel that died takes nothing with it
    assert publish(adapter, other.name) is Verdict.CONFIRMED


@pytest.mark.parametrize(
    ("there", "wanted", "told"),
    [
        ("queue_type=quorum", "queue_type=classic", "expected x-overflow|expected x-dead-letter-strategy none|expected x-queue-type 'classic'"),
        ("queue_type=classic", "queue_type=quorum", "expected x-dead-letter-strategy 'at-least-once'|expected x-queue-type 'quorum'"),
    ],
)
def test_another_type_of_queue_is_a_mismatch(rabbitmq_url, name, there, wanted, told):
    first, second = (connect(f"{rabbitmq_url}?{options}") for options in (there, wanted))
    first.ensure([Queue(name=name)])
    with pytest.raises(TopologyMismatch, match=told):
        second.ensure([Queue(name=name)])
    first.close()
    second.close()


def test_another_name_of_the_dead_letters_is_a_mismatch(adapter, name):
    adapter.ensure([Queue(name=name)])
    with pytest.raises(TopologyMismatch, match=f"expected x-dead-letter-routing-key 'graves', but it is there with .* '{name}.dlq'"):
        adapter.ensure([Queue(name=name, dead_letter="graves")])


def test_a_topic_whose_exchange_somebody_else_made_otherwise_is_a_mismatch(rabbitmq_url, adapter, name):
    with raw(rabbitmq_url) as channel:
        channel.exchange_declare(f"postroom.{name}", "headers", durable=True)
    with pytest.raises(TopologyMismatch, match=f"'postroom.{name}': expected type 'fanout', but it is there with type 'headers'"):
        adapter.ensure([Queue(name=name, groups=("mail",))])


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("passive", [False, True])
def test_a_queue_does_not_become_a_topic_nor_a_topic_a_queue_where_one_of_them_would_fill_unread(adapter, name, ordered, passive):
    adapter.ensure([Queue(name=name, ordered=ordered), Queue(name=f"{name}-topic", ordered=ordered, groups=("mail",))])
    with pytest.raises(TopologyMismatch, match="expected a topic with groups, but it is there as a queue"):
        adapter.ensure([Queue(name=name, ordered=ordered, groups=("mail",))], passive=passive)
    with pytest.raises(TopologyMismatch, match="expected a queue, but it is there as a topic with groups"):
        adapter.ensure([Queue(name=f"{name}-topic", ordered=ordered)], passive=passive)


@pytest.mark.parametrize(("there", "wanted"), [(4, 8), (8, 4)])
def test_another_number_of_partitions_is_a_mismatch(rabbitmq_url, name, there, wanted):
    first, second = (connect(f"{rabbitmq_url}?partitions={count}") for count in (there, wanted))
    first.ensure([Queue(name=name, ordered=True)])
    with pytest.raises(TopologyMismatch, match=f"expected partitions {wanted}, but it is there with partitions {there}"):
        second.ensure([Queue(name=name, ordered=True)])
    first.close()
    second.close()


def test_a_declaration_that_was_cut_short_is_completed(rabbitmq_url, adapter, name):
    queue = Queue(name=name, ordered=True)
    adapter.ensure([queue])
    with raw(rabbitmq_url) as channel:
        for number in range(4):  # the last are made first
            channel.queue_delete(f"{name}#{number}")
    adapter.ensure([queue])
    adapter.ensure([queue], passive=True)


@pytest.mark.parametrize("ordered", [False, True])
def test_without_a_word_about_it_a_queue_is_a_quorum_queue_that_loses_nothing_by_itself(rabbitmq_url, adapter, name, ordered):
    adapter.ensure([Queue(name=name, ordered=ordered)])
    no_limit = {"x-queue-type": "quorum", "x-delivery-limit": 2**31 - 1}  # the ledger counts attempts; RabbitMQ 4 would give up after 20 deliveries
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}.dlq", "x-dead-letter-strategy": "at-least-once"}
    one_reader = {"x-single-active-consumer": True} if ordered else {}
    with raw(rabbitmq_url) as channel:
        for queue in [f"{name}#{number}" for number in range(8)] if ordered else [name]:  # refused unless it is the very same
            channel.queue_declare(queue, durable=True, arguments={**no_limit, **letters, **one_reader, "x-overflow": "reject-publish"})
        channel.queue_declare(f"{name}.dlq", durable=True, arguments=no_limit)
        channel.exchange_declare("postroom", "direct", durable=True)


def test_queues_are_durable_and_of_the_type_that_was_chosen(rabbitmq_url, name):
    adapter = connect(f"{rabbitmq_url}?queue_type=classic")
    adapter.ensure([Queue(name=name)])
    assert publish(adapter, name) is Verdict.CONFIRMED
    assert drain(adapter, name, 1) == ["order-4711"]
    with raw(rabbitmq_url) as channel:
        channel.queue_declare(f"{name}.dlq", durable=True, arguments={"x-queue-type": "classic"})
    adapter.close()


def test_another_process_finds_an_ordered_queue_and_all_its_partitions(rabbitmq_url, other, name):
    adapter = connect(f"{rabbitmq_url}?partitions=3")
    adapter.ensure([Queue(name=name, ordered=True)])
    for number in range(20):
        assert publish(other, name, f"{number}", ordering_key=f"key-{number}") is Verdict.CONFIRMED
    assert other.depth(name)["pending"] == 20
    assert sorted(drain(other, name, 20), key=int) == [f"{number}" for number in range(20)]
    adapter.close()


def test_another_process_finds_dead_letters_under_a_name_of_their_own(adapter, other, name):
    adapter.ensure([Queue(name=name, dead_letter=f"{name}-graves")])
    publish(adapter, name)
    consumer = other.consume({name: 1}, group="tests", prefetch=1, name="worker")
    (delivery,) = consumer.receive(1, 30)
    consumer.dead_letter(delivery, "no such address")
    assert other.depth(f"{name}-graves")["pending"] == 1
    assert [letter.reason for letter in other.dead_letters(name).list()] == ["no such address"]


def test_an_ordered_topic_keeps_each_groups_order(adapter, other, name):
    adapter.ensure([Queue(name=name, ordered=True, groups=("mail", "stock"))])
    for number in range(10):
        assert publish(other, name, f"{number}", ordering_key="order-4711") is Verdict.CONFIRMED
    for group in ("mail", "stock"):
        assert drain(other, f"{name}.{group}", 10) == [f"{number}" for number in range(10)]


def test_other_programs_may_bind_to_a_topic_and_publish_to_it(rabbitmq_url, adapter, name):
    adapter.ensure([Queue(name=name, groups=("mail",))])
    with raw(rabbitmq_url) as channel:
        channel.queue_declare(f"{name}-theirs", durable=True)
        channel.queue_bind(f"{name}-theirs", f"postroom.{name}")
        channel.basic_publish("postroom", name, b"from elsewhere")
        publish(adapter, name)
        assert drain(adapter, f"{name}.mail", 2)[1] == "order-4711"  # the other came without an id
        assert channel.queue_declare(f"{name}-theirs", passive=True).method.message_count == 2


@pytest.fixture
def onlooker(rabbitmq_server):
    """The URL of a user who may read and write, and declare nothing."""
    rabbitmq_server.ctl("add_user", "onlooker", "onlooker")
    rabbitmq_server.ctl("set_permissions", "onlooker", "^$", ".*", ".*")
    yield rabbitmq_server.url.replace("postroom:postroom", "onlooker:onlooker")
    rabbitmq_server.ctl("delete_user", "onlooker")


def test_who_may_not_declare_can_use_what_others_own(rabbitmq_server, onlooker, name):
    owner, user = connect(rabbitmq_server.url), connect(onlooker)
    queue = Queue(name=name)
    owner.ensure([queue])
    user.ensure([queue], passive=True)
    assert publish(user, name) is Verdict.CONFIRMED
    assert drain(user, name, 1) == ["order-4711"]
    with pytest.raises(TopologyMismatch, match="it is not there"):
        user.ensure([replace(queue, name=f"{name}-2")], passive=True)
    with pytest.raises(AccessDenied, match="ACCESS_REFUSED"):
        user.ensure([replace(queue, name=f"{name}-2")])
    owner.close()
    user.close()
