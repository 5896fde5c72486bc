"""Who goes before whom: order within a key, weights between queues, groups beside each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .stage import ids

if TYPE_CHECKING:
    from postroom.adapters.seam import Consumer

    from .stage import Stage

__all__ = ["FanOut", "Ordered", "Priority"]


class Ordered:
    """Queues that keep the order of each key, and nothing more."""

    def test_one_job_of_a_key_is_in_flight_and_other_keys_flow(self, stage: Stage) -> None:
        stage.needs("ordered")
        queue = stage.queue(ordered=True)
        a, _, b = stage.publish(stage.message(queue, key="a"), stage.message(queue, key="a"), stage.message(queue, key="b"))
        assert sorted(ids(stage.exactly(2, stage.consumer(queue)))) == [a, b]

    def test_two_consumers_never_hold_jobs_of_one_key_together(self, stage: Stage) -> None:
        stage.needs("ordered")
        queue = stage.queue(ordered=True)
        published = stage.fill(queue, 3, key="a")
        assert ids(stage.exactly(1, stage.consumer(queue), stage.consumer(queue))) == published[:1]

    def test_the_jobs_of_each_key_run_in_their_order(self, stage: Stage) -> None:
        stage.needs("ordered")
        queue = stage.queue(ordered=True)
        messages = [stage.message(queue, key=f"key-{number % 3}") for number in range(15)]
        stage.publish(*messages)
        done = stage.drain(stage.consumer(queue), 15)
        for key in ("key-0", "key-1", "key-2"):
            own = [message.id for message in messages if message.ordering_key == key]
            assert [identity for identity in done if identity in own] == own

    def test_jobs_without_a_key_hold_nobody(self, stage: Stage) -> None:
        stage.needs("ordered")
        queue = stage.queue(ordered=True)
        published = stage.fill(queue, 4)
        assert sorted(ids(stage.exactly(4, stage.consumer(queue)))) == published

    def test_a_released_job_of_a_key_comes_before_its_followers(self, stage: Stage) -> None:
        stage.needs("ordered")
        queue = stage.queue(ordered=True)
        published = stage.fill(queue, 3, key="a")
        consumer = stage.consumer(queue)
        consumer.release([stage.one(consumer)])
        assert stage.drain(consumer, 3) == published

    def test_a_retry_holds_its_own_key_and_no_other(self, stage: Stage) -> None:
        stage.needs("ordered", "native_delay")
        queue = stage.queue(ordered=True)
        a1, a2 = stage.fill(queue, 2, key="a")
        consumer = stage.consumer(queue)
        consumer.fail(stage.one(consumer), "smtp is down", 60)
        b1, b2 = stage.fill(queue, 2, key="b")
        assert stage.drain(consumer, 2) == [b1, b2]
        assert stage.rest(consumer) == []
        stage.harness.advance(61)
        assert stage.drain(consumer, 2) == [a1, a2]

    def test_a_deferred_job_holds_its_own_key(self, stage: Stage) -> None:
        stage.needs("ordered", "native_delay")
        queue = stage.queue(ordered=True)
        published = stage.fill(queue, 2, key="a")
        consumer = stage.consumer(queue)
        consumer.release([stage.one(consumer)], 60)
        assert stage.rest(consumer) == []
        stage.harness.advance(61)
        assert stage.drain(consumer, 2) == published

    def test_a_job_that_its_caller_delayed_joins_its_key_when_it_is_due(self, stage: Stage) -> None:
        stage.needs("ordered", "native_delay")
        queue = stage.queue(ordered=True)
        late, soon, prompt = (stage.message(queue, key="a", delay=delay) for delay in (60, 30, 0))
        stage.publish(late, soon, prompt)
        consumer = stage.consumer(queue)
        assert stage.drain(consumer, 1) == [prompt.id]
        assert stage.rest(consumer) == []
        stage.harness.advance(61)
        assert stage.drain(consumer, 2) == [soon.id, late.id]

    def test_a_dead_letter_of_one_key_lets_other_keys_flow(self, stage: Stage) -> None:
        stage.needs("ordered")
        queue = stage.queue(ordered=True)
        stage.fill(queue, 1, key="a")
        consumer = stage.consumer(queue)
        consumer.dead_letter(stage.one(consumer), "no such address")
        others = stage.fill(queue, 2, key="b")
        assert stage.drain(consumer, 2) == others

    def test_a_dead_letter_holds_its_own_key_until_it_is_put_back(self, stage: Stage) -> None:
        stage.needs("ordered", "native_delay")
        queue = stage.queue(ordered=True)
        published = stage.fill(queue, 3, key="a")
        consumer = stage.consumer(queue)
        consumer.dead_letter(stage.one(consumer), "no such address")
        assert stage.rest(consumer) == []
        letters = stage.adapter.dead_letters(queue.name)
        letters.put_back([letter.id for letter in letters.list()])
        assert stage.drain(consumer, 3) == published

    def test_a_dead_letter_that_is_taken_away_frees_its_key(self, stage: Stage) -> None:
        stage.needs("ordered", "native_delay")
        queue = stage.queue(ordered=True)
        published = stage.fill(queue, 3, key="a")
        consumer = stage.consumer(queue)
        consumer.dead_letter(stage.one(consumer), "no such address")
        letters = stage.adapter.dead_letters(queue.name)
        letters.take([letter.id for letter in letters.list()])
        assert stage.drain(consumer, 2) == published[1:]

    def test_a_dead_letter_in_a_queue_without_order_holds_nobody(self, stage: Stage) -> None:
        queue = stage.queue()
        stage.fill(queue, 3, key="a")
        consumer = stage.consumer(queue)
        consumer.dead_letter(stage.one(consumer), "no such address")
        stage.drain(consumer, 2)


class Priority:
    """Weighted queues: the urgent go first, the others are never starved."""

    def test_a_heavier_queue_is_served_more_and_a_lighter_one_is_not_starved(self, stage: Stage) -> None:
        stage.needs("rolling")
        queue = stage.queue(priorities={"high": 4, "low": 1})
        stage.fill(f"{queue.name}.low", 30)
        stage.fill(f"{queue.name}.high", 30)
        consumer = stage.consumer(queue, prefetch=10)
        served = [self._serve(stage, consumer) for _ in range(20)]
        high, low = served.count(f"{queue.name}.high"), served.count(f"{queue.name}.low")
        assert high > low >= 1

    def test_a_lighter_queue_gets_everything_when_the_heavier_one_is_empty(self, stage: Stage) -> None:
        queue = stage.queue(priorities={"high": 4, "low": 1})
        published = stage.fill(f"{queue.name}.low", 10)
        assert sorted(stage.drain(stage.consumer(queue), 10)) == published

    def test_a_consumer_of_one_priority_leaves_the_others_alone(self, stage: Stage) -> None:
        queue = stage.queue(priorities={"high": 4, "low": 1})
        (urgent,) = stage.fill(f"{queue.name}.high", 1)
        stage.fill(f"{queue.name}.low", 1)
        assert ids(stage.exactly(1, stage.consumer(f"{queue.name}.high"))) == [urgent]

    @staticmethod
    def _serve(stage: Stage, consumer: Consumer) -> str:
        delivery = stage.one(consumer)
        consumer.ack([delivery])
        return delivery.queue


class FanOut:
    """Topics: every group gets every message, and none sees what the others do."""

    def test_every_group_gets_every_message_once(self, stage: Stage) -> None:
        stage.needs("fan_out")
        topic = stage.queue("orders", groups=("mail", "stock"))
        published = stage.fill(topic, 5)
        for group in ("mail", "stock"):
            consumer = stage.consumer(f"{topic.name}.{group}", group=group)
            assert sorted(ids(stage.exactly(5, consumer))) == published

    def test_the_groups_settle_apart(self, stage: Stage) -> None:
        stage.needs("fan_out")
        topic = stage.queue("orders", groups=("mail", "stock"))
        published = stage.fill(topic, 1)
        mail = stage.consumer(f"{topic.name}.mail", group="mail")
        mail.dead_letter(stage.one(mail), "no such address")
        assert stage.drain(stage.consumer(f"{topic.name}.stock", group="stock"), 1) == published
        assert [letter.message.id for letter in stage.adapter.dead_letters(f"{topic.name}.mail").list()] == published
        assert not stage.adapter.dead_letters(f"{topic.name}.stock").list()

    def test_consumers_of_one_group_share_its_messages(self, stage: Stage) -> None:
        stage.needs("fan_out", "competing")
        topic = stage.queue("orders", groups=("mail",))
        published = stage.fill(topic, 10)
        consumers = [stage.consumer(f"{topic.name}.mail", group="mail", prefetch=5) for _ in range(2)]
        assert sorted(ids(stage.exactly(10, *consumers))) == published

    def test_a_message_for_one_group_reaches_that_group_only(self, stage: Stage) -> None:
        stage.needs("fan_out")
        topic = stage.queue("orders", groups=("mail", "stock"))
        (identity,) = stage.fill(f"{topic.name}.mail", 1)
        assert stage.drain(stage.consumer(f"{topic.name}.mail", group="mail"), 1) == [identity]
        assert stage.rest(stage.consumer(f"{topic.name}.stock", group="stock")) == []
