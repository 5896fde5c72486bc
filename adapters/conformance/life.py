"""The life of a job through the seam: every arrow of `postroom.adapters.machine`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postroom.adapters.errors import ConfigurationError, LeaseLost

from .stage import ids

if TYPE_CHECKING:
    from .stage import Stage

__all__ = ["Life"]


class Life:
    """Pending, running, done, failed."""

    def test_an_empty_queue_gives_nothing_and_no_error(self, stage: Stage) -> None:
        consumer = stage.consumer(stage.queue())
        assert list(consumer.receive(10, 0)) == []
        assert list(consumer.receive(10, stage.harness.silence)) == []

    def test_a_published_job_is_delivered(self, stage: Stage) -> None:
        queue = stage.queue()
        message = stage.message(queue, b'{"order": 4711}', key="order-4711", headers={"tenant": "north"})
        stage.publish(message)
        delivery = stage.one(stage.consumer(queue))
        assert (delivery.message.id, delivery.message.body, delivery.queue) == (message.id, message.body, queue.name)
        assert delivery.message.headers["tenant"] == "north"
        assert delivery.message.ordering_key == "order-4711"
        assert delivery.attempts == 0

    def test_a_second_take_does_not_return_a_running_job(self, stage: Stage) -> None:
        queue = stage.queue()
        stage.fill(queue, 1)
        first, second = stage.consumer(queue), stage.consumer(queue)
        stage.one(first)
        assert stage.rest(first) + stage.rest(second) == []

    def test_an_acked_job_never_comes_back(self, stage: Stage) -> None:
        queue = stage.queue()
        stage.fill(queue, 3)
        consumer = stage.consumer(queue)
        consumer.ack(stage.receive(consumer, 3))
        consumer.close()
        assert stage.rest(stage.consumer(queue)) == []

    def test_a_second_ack_is_rejected(self, stage: Stage) -> None:
        queue = stage.queue()
        stage.fill(queue, 1)
        consumer = stage.consumer(queue)
        delivery = stage.one(consumer)
        consumer.ack([delivery])
        with pytest.raises(LeaseLost) as lost:
            consumer.ack([delivery])
        assert list(lost.value.lost) == [delivery]

    def test_jobs_run_oldest_first(self, stage: Stage) -> None:
        stage.needs("fifo")
        queue = stage.queue()
        published = stage.fill(queue, 20) + stage.fill(queue, 1)
        assert stage.drain(stage.consumer(queue), 21) == published

    def test_a_released_job_comes_back_uncharged(self, stage: Stage) -> None:
        queue = stage.queue()
        stage.fill(queue, 1)
        consumer = stage.consumer(queue)
        first = stage.one(consumer)
        consumer.release([first])
        second = stage.one(consumer)
        assert second.message.id == first.message.id
        assert second.attempts == first.attempts == 0 or not stage.capabilities.counts_attempts
        assert second.token != first.token

    def test_released_jobs_come_back_at_their_old_place(self, stage: Stage) -> None:
        stage.needs("fifo")
        queue = stage.queue()
        published = stage.fill(queue, 6)
        consumer = stage.consumer(queue, prefetch=3)
        one, two, three = stage.receive(consumer, 3)
        consumer.release([two])
        consumer.release([one, three])
        assert stage.drain(consumer, 6) == published

    def test_a_failed_attempt_is_counted_and_the_job_is_taken_again(self, stage: Stage) -> None:
        stage.needs("native_delay")
        queue = stage.queue()
        stage.fill(queue, 1, max_attempts=3)
        consumer = stage.consumer(queue)
        consumer.fail(stage.one(consumer), "smtp is down")
        assert stage.one(consumer).attempts == 1

    def test_the_third_fail_on_a_max_of_three_leaves_the_job_failed_and_untaken(self, stage: Stage) -> None:
        stage.needs("native_delay")
        queue = stage.queue()
        published = stage.fill(queue, 1, max_attempts=3)
        consumer = stage.consumer(queue)
        for attempt in (1, 2, 3):
            consumer.fail(stage.one(consumer), f"attempt {attempt}: smtp is down")
        assert stage.rest(consumer) == []
        (letter,) = stage.adapter.dead_letters(queue.name).list()
        assert ([letter.message.id], letter.reason, letter.attempts) == (published, "attempt 3: smtp is down", 3)

    def test_a_job_without_a_limit_never_dies_of_its_attempts(self, stage: Stage) -> None:
        stage.needs("native_delay")
        queue = stage.queue()
        stage.fill(queue, 1)
        consumer = stage.consumer(queue)
        for attempt in range(30):
            delivery = stage.one(consumer)
            assert delivery.attempts == attempt
            consumer.fail(delivery, "not yet")
        assert not stage.adapter.dead_letters(queue.name).list()

    def test_a_failed_attempt_waits_for_its_backoff(self, stage: Stage) -> None:
        stage.needs("native_delay")
        queue = stage.queue()
        stage.fill(queue, 1)
        consumer = stage.consumer(queue)
        consumer.fail(stage.one(consumer), "smtp is down", 60)
        assert stage.rest(consumer) == []
        stage.harness.advance(61)
        assert stage.one(consumer).attempts == 1

    def test_a_job_that_waits_holds_no_other_back(self, stage: Stage) -> None:
        stage.needs("native_delay")
        queue = stage.queue()
        first, second = stage.fill(queue, 2)
        consumer = stage.consumer(queue)
        held = stage.one(consumer)
        consumer.fail(held, "smtp is down", 60)
        assert sorted(ids([held, *stage.exactly(1, consumer)])) == [first, second]

    def test_a_delayed_job_is_delivered_when_it_is_due_and_not_before(self, stage: Stage) -> None:
        stage.needs("native_delay")
        queue = stage.queue()
        delayed, prompt = stage.message(queue, delay=60), stage.message(queue)
        stage.publish(delayed, prompt)
        consumer = stage.consumer(queue)
        first = stage.exactly(1, consumer)
        consumer.ack(first)
        stage.harness.advance(61)
        assert ids(first + stage.exactly(1, consumer)) == [prompt.id, delayed.id]

    def test_a_job_released_with_a_delay_waits_uncharged(self, stage: Stage) -> None:
        stage.needs("native_delay")
        queue = stage.queue()
        stage.fill(queue, 1)
        consumer = stage.consumer(queue)
        consumer.release([stage.one(consumer)], 60)
        assert stage.rest(consumer) == []
        stage.harness.advance(61)
        assert stage.one(consumer).attempts == 0

    def test_a_delay_is_refused_where_none_is_declared(self, stage: Stage) -> None:
        if stage.capabilities.native_delay:
            pytest.skip(f"{stage.capabilities.name} declares native_delay")
        queue = stage.queue()
        with pytest.raises(ConfigurationError):
            stage.adapter.publish([stage.message(queue, delay=60)])
        stage.fill(queue, 1)
        consumer = stage.consumer(queue)
        delivery = stage.one(consumer)
        with pytest.raises(ConfigurationError):
            consumer.release([delivery], 60)
        with pytest.raises(ConfigurationError):
            consumer.fail(delivery, "smtp is down")
        consumer.ack([delivery])
