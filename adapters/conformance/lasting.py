"""What is still there after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .stage import ids

if TYPE_CHECKING:
    from .stage import Stage

__all__ = ["Lasting"]


class Lasting:
    """Where `durable`: what was confirmed outlives the process and the server."""

    def test_published_jobs_are_still_there_after_a_restart(self, stage: Stage) -> None:
        stage.needs("durable")
        queue = stage.queue()
        message = stage.message(queue, b'{"order": 4711}', key="order-4711", headers={"tenant": "north", "size": 7})
        stage.publish(message)
        stage.restart()
        delivery = stage.one(stage.consumer(queue))
        assert (delivery.message.id, delivery.message.body, delivery.message.ordering_key) == (message.id, message.body, "order-4711")
        assert delivery.message.headers.items() >= message.headers.items()

    def test_a_job_that_was_running_at_a_restart_is_not_lost(self, stage: Stage) -> None:
        stage.needs("durable")
        queue = stage.queue()
        published = stage.fill(queue, 2)
        running = stage.receive(stage.consumer(queue, prefetch=1), 1)
        stage.restart()
        if stage.capabilities.clock_leases:
            stage.expire()
        again = stage.receive(stage.consumer(queue), 2)
        assert sorted(ids(again)) == published
        assert ids(running)[0] in ids(again)

    def test_acked_jobs_stay_done_after_a_restart(self, stage: Stage) -> None:
        stage.needs("durable")
        queue = stage.queue()
        published = stage.fill(queue, 3)
        consumer = stage.consumer(queue)
        consumer.ack(stage.receive(consumer, 3)[:2])
        stage.restart()
        if stage.capabilities.clock_leases:
            stage.expire()
        (left,) = ids(stage.receive(stage.consumer(queue), 1))
        assert left in published
        assert stage.rest(stage.consumer(queue)) == []

    def test_a_delay_goes_on_over_a_restart(self, stage: Stage) -> None:
        stage.needs("durable", "native_delay")
        queue = stage.queue()
        message = stage.message(queue, delay=60)
        stage.publish(message)
        stage.restart()
        assert stage.rest(stage.consumer(queue)) == []
        stage.harness.advance(61)
        assert stage.drain(stage.consumer(queue), 1) == [message.id]

    def test_dead_letters_are_still_there_after_a_restart(self, stage: Stage) -> None:
        stage.needs("durable")
        queue = stage.queue()
        published = stage.fill(queue, 1)
        consumer = stage.consumer(queue)
        consumer.dead_letter(stage.one(consumer), "no such address")
        stage.restart()
        letters = stage.adapter.dead_letters(queue.name)
        (letter,) = letters.list()
        assert ([letter.message.id], letter.reason) == (published, "no such address")
        letters.put_back([letter.id])
        assert stage.drain(stage.consumer(queue), 1) == published

    def test_queues_stay_declared_over_a_restart(self, stage: Stage) -> None:
        stage.needs("durable")
        queue = stage.queue(ordered=stage.capabilities.ordered)
        stage.restart()
        stage.adapter.ensure([queue], passive=True)
        stage.fill(queue, 1)
