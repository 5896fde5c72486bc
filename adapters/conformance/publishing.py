"""What may be published, what became of it, and what is declared."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from postroom.adapters.errors import ConfigurationError, TopologyMismatch
from postroom.adapters.seam import Verdict

from .stage import ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.adapters.seam import Header, Queue

    from .stage import Stage

__all__ = ["Publishing", "Topology"]

BODIES = {
    "empty": b"",
    "one NUL": b"\x00",
    "every byte value": bytes(range(256)),
    "1 MiB": bytes(range(256)) * 4096,
    "not UTF-8": b"\xff\xfe\xc3\x28",
}
HEADERS: dict[str, dict[str, Header]] = {
    "none at all": {},
    "text": {"plain": "north", "unicode": "größe \U0001f4ee", "empty": ""},
    "integers": {"zero": 0, "minus": -1, "largest": 2**63 - 1, "smallest": -(2**63)},
    "booleans, told from integers": {"yes": True, "no": False, "one": 1},
    "bytes": {"raw": bytes(range(256)), "empty": b"", "like text": b"north"},
    "nothing": {"null": None},
    "an odd name": {"größe": "x", "with blank": "y", "UPPER": "z"},
    "a hundred": {f"header-{number}": number for number in range(100)},
}
CONTRADICTIONS: dict[str, Callable[[Queue, Queue], tuple[Queue, Queue]]] = {
    "dead letters among another's jobs": lambda one, other: (one, replace(other, dead_letter=one.name)),
    "jobs among another's dead letters": lambda one, other: (one, replace(other, name=f"{one.name}.dlq")),
    "dead letters in a topic": lambda one, other: (replace(one, groups=("mail",)), replace(other, dead_letter=one.name)),
    "with an order and without": lambda one, _: (one, replace(one, ordered=True)),
    "with one lease and another": lambda one, _: (one, replace(one, lease=one.lease + 1)),
    "as ours and as another program's": lambda one, _: (one, replace(one, foreign=True)),
    "dead letters here and there": lambda one, _: (one, replace(one, dead_letter=f"{one.name}-graves")),
    "as a queue and as a topic": lambda one, _: (one, replace(one, groups=("mail",))),
    "the name of another's group": lambda one, other: (replace(one, groups=("mail",)), replace(other, name=f"{one.name}.mail")),
    "the name of another's priority": lambda one, other: (replace(one, priorities={"high": 1}), replace(other, name=f"{one.name}.high")),
}


class Publishing:
    """One outcome for each message, in order; what was confirmed arrives as it was."""

    def test_there_is_one_outcome_for_each_message_in_order(self, stage: Stage) -> None:
        queue, nowhere = stage.queue(), stage.undeclared("nowhere")
        messages = [stage.message(queue), stage.message(nowhere), stage.message(queue)]
        outcomes = stage.adapter.publish(messages)
        assert [outcome.verdict for outcome in outcomes] == [Verdict.CONFIRMED, Verdict.BUSY, Verdict.CONFIRMED]
        assert nowhere.name in outcomes[1].reason
        assert sorted(ids(stage.exactly(2, stage.consumer(queue)))) == [messages[0].id, messages[2].id]

    def test_publishing_to_an_undeclared_queue_is_busy_until_it_is_declared(self, stage: Stage) -> None:
        queue = stage.undeclared()
        message = stage.message(queue)
        (outcome,) = stage.adapter.publish([message])
        assert outcome.verdict is Verdict.BUSY
        stage.adapter.ensure([queue])
        stage.publish(message)
        assert stage.drain(stage.consumer(queue), 1) == [message.id]

    def test_publishing_nothing_has_no_outcome(self, stage: Stage) -> None:
        assert list(stage.adapter.publish([])) == []

    def test_a_large_batch_arrives_whole(self, stage: Stage) -> None:
        queue = stage.queue()
        published = stage.fill(queue, 500)
        assert sorted(ids(stage.receive(stage.consumer(queue, prefetch=500), 500))) == published

    def test_an_id_published_twice_is_confirmed_twice_and_never_lost(self, stage: Stage) -> None:
        queue = stage.queue()
        message = stage.message(queue)
        stage.publish(message, message)
        stage.publish(message)
        consumer = stage.consumer(queue)
        copies = [stage.one(consumer), *stage.rest(consumer)]
        consumer.ack(copies)
        assert {delivery.message.id for delivery in copies} == {message.id}
        assert len(copies) <= 3

    def test_one_id_in_two_queues_is_two_jobs(self, stage: Stage) -> None:
        one, two = stage.queue("one"), stage.queue("two")
        message = stage.message(one)
        stage.publish(message, replace(message, queue=two.name))
        assert stage.drain(stage.consumer(one), 1) == stage.drain(stage.consumer(two), 1) == [message.id]

    @pytest.mark.parametrize("body", BODIES)
    def test_every_payload_arrives_byte_for_byte(self, stage: Stage, body: str) -> None:
        queue = stage.queue()
        stage.publish(stage.message(queue, BODIES[body]))
        assert stage.one(stage.consumer(queue)).message.body == BODIES[body]

    @pytest.mark.parametrize("headers", HEADERS)
    def test_every_header_arrives_with_its_type(self, stage: Stage, headers: str) -> None:
        queue = stage.queue()
        stage.publish(stage.message(queue, headers=HEADERS[headers]))
        arrived = stage.one(stage.consumer(queue)).message.headers
        assert {name: (type(value), value) for name, value in arrived.items() if name in HEADERS[headers]} == {
            name: (type(value), value) for name, value in HEADERS[headers].items()
        }

    @pytest.mark.parametrize("key", ["order-4711", "größe", " ", "a" * 400, "Case", "case", None])
    def test_every_ordering_key_arrives_as_it_was(self, stage: Stage, key: str | None) -> None:
        queue = stage.queue()
        stage.publish(stage.message(queue, key=key))
        assert stage.one(stage.consumer(queue)).message.ordering_key == key

    def test_keys_that_look_alike_are_different_keys(self, stage: Stage) -> None:
        stage.needs("ordered")
        queue = stage.queue(ordered=True)
        keys = ["bot-a", "Bot-A", "bot-a ", "bot-ä", "bot-a\u0308"]
        published = stage.publish(*(stage.message(queue, key=key) for key in keys))
        assert sorted(ids(stage.exactly(5, stage.consumer(queue)))) == published


class Topology:
    """Declaring is idempotent, and never changes what is there."""

    def test_declaring_again_changes_nothing(self, stage: Stage) -> None:
        queue = stage.queue()
        published = stage.fill(queue, 2)
        stage.adapter.ensure([queue])
        stage.adapter.ensure([queue, queue])
        stage.adapter.ensure([queue], passive=True)
        assert sorted(ids(stage.exactly(2, stage.consumer(queue)))) == published

    def test_other_arguments_are_a_mismatch_that_names_them(self, stage: Stage) -> None:
        queue = stage.queue()
        with pytest.raises(TopologyMismatch) as mismatch:
            stage.adapter.ensure([stage.harness.differently(queue)])
        missing = [word for word in (queue.name, *stage.harness.difference) if word not in str(mismatch.value)]
        assert not missing, f"{mismatch.value} does not name {missing}"

    def test_a_mismatch_changes_nothing(self, stage: Stage) -> None:
        queue, unborn = stage.queue(), stage.undeclared("unborn")
        with pytest.raises(TopologyMismatch):
            stage.adapter.ensure([unborn, stage.harness.differently(queue)])
        stage.adapter.ensure([queue], passive=True)
        with pytest.raises(TopologyMismatch):
            stage.adapter.ensure([unborn], passive=True)
        (outcome,) = stage.adapter.publish([stage.message(unborn)])
        assert outcome.verdict is Verdict.BUSY

    @pytest.mark.parametrize("contradiction", CONTRADICTIONS)
    def test_queues_that_contradict_each_other_are_refused_by_their_names_and_nothing_is_made(self, stage: Stage, contradiction: str) -> None:
        queues = CONTRADICTIONS[contradiction](stage.undeclared("one"), stage.undeclared("other"))
        for given in (queues, queues[::-1]):
            with pytest.raises(ConfigurationError) as refusal:
                stage.adapter.ensure(given)
            told = str(refusal.value)
            assert all(queue.name in told for queue in queues), told
            assert "another name" in told or "use one Queue" in told
        outcomes = stage.adapter.publish([stage.message(queue) for queue in queues])
        assert [outcome.verdict for outcome in outcomes] == [Verdict.BUSY, Verdict.BUSY]

    def test_several_queues_may_share_their_dead_letters_and_one_may_be_declared_twice(self, stage: Stage) -> None:
        one, other = (replace(stage.undeclared(word), dead_letter=stage.name("graves")) for word in ("one", "other"))
        stage.adapter.ensure([one, other, one])
        stage.adapter.ensure([other, one], passive=True)

    def test_a_consumer_of_queues_that_are_all_there_has_no_troubles(self, stage: Stage) -> None:
        queues = [stage.queue("one"), stage.queue("other")]
        consumer = stage.subscribe({queue.name: 1 for queue in queues})
        stage.fill(queues[0], 1)
        stage.one(consumer)
        assert list(consumer.troubles) == []

    def test_a_passive_look_at_a_missing_queue_names_it_and_makes_nothing(self, stage: Stage) -> None:
        queue = stage.undeclared()
        with pytest.raises(TopologyMismatch, match=queue.name):
            stage.adapter.ensure([queue], passive=True)
        (outcome,) = stage.adapter.publish([stage.message(queue)])
        assert outcome.verdict is Verdict.BUSY

    def test_a_topic_may_gain_a_group_which_gets_what_is_published_from_then_on(self, stage: Stage) -> None:
        stage.needs("fan_out")
        topic = stage.queue("orders", groups=("mail",))
        stage.adapter.ensure([replace(topic, groups=("mail", "stock"))])
        published = stage.fill(topic, 1)
        assert stage.drain(stage.consumer(f"{topic.name}.stock", group="stock"), 1) == published
        assert stage.drain(stage.consumer(f"{topic.name}.mail", group="mail"), 1) == published

    def test_a_queue_nobody_declared_can_not_be_consumed(self, stage: Stage) -> None:
        name = stage.name("nowhere")
        with pytest.raises(ConfigurationError, match=name):
            stage.adapter.consume({name: 1}, group="conformance", prefetch=1, name="worker")

    def test_what_was_declared_is_listed_by_its_carriers(self, stage: Stage) -> None:
        queue, urgent = stage.queue("orders"), stage.queue("mail", priorities={"high": 4, "low": 1})
        listed = list(stage.adapter.carriers())
        assert {*queue.carriers, *urgent.carriers} <= set(listed)
        assert listed == sorted(listed)

    def test_what_another_process_declared_is_listed_too(self, stage: Stage) -> None:
        stage.needs("lists")
        queue = stage.queue("orders")
        assert queue.name in stage.harness.adapter().carriers()

    def test_a_queue_nobody_declared_is_empty(self, stage: Stage) -> None:
        depth = stage.adapter.depth(stage.name("nowhere"))
        assert (depth["pending"], depth["running"], depth["failed"]) == (0, 0, 0)

    @pytest.mark.parametrize(("weight", "prefetch"), [(0, 1), (-1, 1), (1, 0)])
    def test_a_weight_or_a_prefetch_of_nothing_is_refused(self, stage: Stage, weight: int, prefetch: int) -> None:
        queue = stage.queue()
        with pytest.raises(ConfigurationError):
            stage.adapter.consume({queue.name: weight}, group="conformance", prefetch=prefetch, name="worker")

    def test_a_consumer_of_no_queue_is_refused(self, stage: Stage) -> None:
        with pytest.raises(ConfigurationError):
            stage.adapter.consume({}, group="conformance", prefetch=1, name="worker")
