"""Who holds a job: leases, fences, and the bound on what one consumer may hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postroom.adapters.errors import Closed, LeaseLost
from postroom.adapters.machine import LEASE_EXPIRED

from .stage import ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.adapters.seam import Consumer, Delivery

    from .stage import Stage

__all__ = ["Leases"]

SETTLES: dict[str, Callable[[Consumer, Delivery], None]] = {
    "ack": lambda consumer, delivery: consumer.ack([delivery]),
    "release": lambda consumer, delivery: consumer.release([delivery]),
    "dead_letter": lambda consumer, delivery: consumer.dead_letter(delivery, "no such address"),
}


class Leases:
    """A delivery belongs to one consumer, for a time."""

    def test_a_job_taken_and_never_acked_is_returned_after_the_lease_with_attempts_incremented(self, stage: Stage) -> None:
        stage.needs("clock_leases")
        queue = stage.queue()
        published = stage.fill(queue, 1)
        vanished, other = stage.consumer(queue), stage.consumer(queue)
        stage.one(vanished)
        assert stage.rest(other) == []
        stage.expire()
        again = stage.one(other)
        assert ids([again]) == published
        assert again.attempts == 1 or not stage.capabilities.counts_attempts

    def test_an_expired_job_comes_back_before_younger_ones_of_its_key(self, stage: Stage) -> None:
        stage.needs("clock_leases", "ordered")
        queue = stage.queue(ordered=True)
        published = stage.fill(queue, 2, key="a")
        stage.one(stage.consumer(queue))
        stage.expire()
        assert stage.drain(stage.consumer(queue), 2) == published

    def test_a_job_whose_lease_expires_on_its_last_attempt_is_failed(self, stage: Stage) -> None:
        stage.needs("clock_leases", "native_delay")
        queue = stage.queue()
        published = stage.fill(queue, 1, max_attempts=2)
        for _ in range(2):
            stage.one(stage.consumer(queue))
            stage.expire()
        assert stage.rest(stage.consumer(queue)) == []
        (letter,) = stage.adapter.dead_letters(queue.name).list()
        assert ([letter.message.id], letter.attempts, letter.reason) == (published, 2, LEASE_EXPIRED)

    def test_an_extended_lease_keeps_the_job(self, stage: Stage) -> None:
        stage.needs("clock_leases")
        queue = stage.queue()
        stage.fill(queue, 1)
        holder, other = stage.consumer(queue), stage.consumer(queue)
        delivery = stage.one(holder)
        for _ in range(3):
            stage.harness.advance(stage.harness.lease * 0.6)
            holder.extend([delivery], stage.harness.lease)
        assert stage.rest(other) == []
        holder.ack([delivery])
        stage.expire()
        assert stage.rest(other) == []

    def test_an_extended_lease_runs_out_in_its_turn(self, stage: Stage) -> None:
        stage.needs("clock_leases")
        queue = stage.queue()
        stage.fill(queue, 1)
        holder, other = stage.consumer(queue), stage.consumer(queue)
        holder.extend([stage.one(holder)], 2 * stage.harness.lease)
        stage.expire()
        assert stage.rest(other) == []
        stage.expire()
        stage.one(other)

    @pytest.mark.parametrize("settle", SETTLES)
    def test_a_settled_job_can_not_be_settled_again(self, stage: Stage, settle: str) -> None:
        queue = stage.queue()
        stage.fill(queue, 1)
        consumer = stage.consumer(queue)
        delivery = stage.one(consumer)
        consumer.ack([delivery])
        with pytest.raises(LeaseLost):
            SETTLES[settle](consumer, delivery)
        assert stage.rest(consumer) == []
        assert not stage.adapter.dead_letters(queue.name).list()

    @pytest.mark.parametrize("settle", SETTLES)
    def test_a_stale_token_changes_nothing_for_the_new_holder(self, stage: Stage, settle: str) -> None:
        stage.needs("clock_leases")
        queue = stage.queue()
        stage.fill(queue, 1)
        slow, holder = stage.consumer(queue), stage.consumer(queue)
        stale = stage.one(slow)
        stage.expire()
        fresh = stage.one(holder)
        with pytest.raises(LeaseLost) as lost:
            SETTLES[settle](slow, stale)
        assert [delivery.token for delivery in lost.value.lost] == [stale.token]
        assert stage.rest(slow) == []
        holder.ack([fresh])
        assert not stage.adapter.dead_letters(queue.name).list()

    def test_a_stale_token_can_not_fail_or_extend(self, stage: Stage) -> None:
        stage.needs("clock_leases", "native_delay")
        queue = stage.queue()
        stage.fill(queue, 1, max_attempts=2)
        slow, holder = stage.consumer(queue), stage.consumer(queue)
        stale = stage.one(slow)
        stage.expire()
        fresh = stage.one(holder)
        with pytest.raises(LeaseLost):
            slow.fail(stale, "too late")
        with pytest.raises(LeaseLost):
            slow.extend([stale], 1000)
        holder.ack([fresh])
        assert not stage.adapter.dead_letters(queue.name).list()

    def test_the_other_deliveries_of_a_batch_are_settled_beside_a_lost_one(self, stage: Stage) -> None:
        queue = stage.queue()
        stage.fill(queue, 3)
        consumer = stage.consumer(queue)
        first, second, third = stage.receive(consumer, 3)
        consumer.ack([second])
        with pytest.raises(LeaseLost) as lost:
            consumer.ack([first, second, third])
        assert list(lost.value.lost) == [second]
        consumer.close()
        assert stage.rest(stage.consumer(queue)) == []

    def test_a_released_job_can_not_be_acked_by_its_old_token(self, stage: Stage) -> None:
        queue = stage.queue()
        stage.fill(queue, 1)
        consumer = stage.consumer(queue)
        old = stage.one(consumer)
        consumer.release([old])
        new = stage.one(consumer)
        with pytest.raises(LeaseLost):
            consumer.ack([old])
        consumer.ack([new])

    def test_settling_nothing_is_nothing(self, stage: Stage) -> None:
        consumer = stage.consumer(stage.queue())
        consumer.ack([])
        consumer.release([])
        consumer.extend([], 30)

    def test_no_more_than_the_prefetch_is_unsettled(self, stage: Stage) -> None:
        one, two = stage.queue("one"), stage.queue("two")
        stage.fill(one, 6)
        stage.fill(two, 6)
        consumer = stage.subscribe({one.name: 1, two.name: 1}, prefetch=3)
        held = stage.exactly(3, consumer)
        consumer.ack(held[:2])
        stage.exactly(2, consumer)

    def test_no_more_than_the_limit_is_returned_at_once(self, stage: Stage) -> None:
        queue = stage.queue()
        stage.fill(queue, 5)
        consumer = stage.consumer(queue)
        assert 1 <= len(stage.receive(consumer, 2)) <= 2
        assert len(consumer.receive(2, stage.harness.patience)) <= 2

    def test_abandoned_jobs_are_handed_back_uncharged(self, stage: Stage) -> None:
        stage.needs("clock_leases")
        queue = stage.queue()
        published = stage.fill(queue, 3)
        stage.receive(stage.consumer(queue, name="dead", prefetch=2), 2)
        living = stage.consumer(queue, name="living")
        kept = stage.one(living)
        assert stage.adapter.abandon("dead") == 2
        freed = stage.receive(living, 2)
        assert sorted(ids([kept, *freed])) == published
        assert {delivery.attempts for delivery in freed} == {0}
        assert stage.adapter.abandon("dead") == 0

    def test_the_token_of_an_abandoned_job_is_stale(self, stage: Stage) -> None:
        stage.needs("clock_leases")
        queue = stage.queue()
        stage.fill(queue, 1)
        consumer = stage.consumer(queue, name="believed-dead")
        delivery = stage.one(consumer)
        stage.adapter.abandon("believed-dead")
        with pytest.raises(LeaseLost):
            consumer.ack([delivery])

    def test_closing_a_consumer_hands_back_what_it_holds(self, stage: Stage) -> None:
        queue = stage.queue()
        published = stage.fill(queue, 3)
        leaving = stage.consumer(queue)
        acked, *_ = stage.receive(leaving, 3)
        leaving.ack([acked])
        leaving.close()
        freed = stage.receive(stage.consumer(queue), 2)
        assert sorted([acked.message.id, *ids(freed)]) == published
        assert {delivery.attempts for delivery in freed} == {0} or not stage.capabilities.counts_attempts

    def test_a_closed_consumer_receives_and_settles_nothing(self, stage: Stage) -> None:
        queue = stage.queue()
        published = stage.fill(queue, 1)
        consumer = stage.consumer(queue)
        delivery = stage.one(consumer)
        consumer.close()
        consumer.close()
        with pytest.raises(Closed):
            consumer.receive(1, 0)
        with pytest.raises((Closed, LeaseLost)):
            consumer.ack([delivery])
        assert stage.drain(stage.consumer(queue), 1) == published

    def test_a_closed_adapter_says_so(self, stage: Stage) -> None:
        queue = stage.queue()
        consumer = stage.consumer(queue)
        stage.adapter.close()
        stage.adapter.close()
        with pytest.raises(Closed):
            stage.adapter.publish([stage.message(queue)])
        with pytest.raises(Closed):
            stage.adapter.consume(queue.carriers, group="conformance", prefetch=1, name="late")
        with pytest.raises(Closed):
            consumer.receive(1, 0)
