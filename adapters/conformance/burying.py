"""Dead letters: given up, kept whole, listed, taken away, put back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from postroom.adapters.errors import LeaseLost

from .stage import ids

if TYPE_CHECKING:
    from postroom.adapters.seam import Consumer, DeadLetter, Queue

    from .stage import Stage

__all__ = ["Burying"]

REASONS = {
    "empty": "",
    "with a NUL": "a NUL \x00 in it",
    "unicode": "größer \U0001f4ee\nsecond line",
    "half a pair": "half a pair \ud800",
    "200 kB": "x" * 200_000,
}


class Burying:
    """What nobody could do is not lost."""

    def test_a_dead_letter_keeps_its_original_bytes_and_headers(self, stage: Stage) -> None:
        queue = stage.queue()
        message = stage.message(queue, b"\xff\x00 not JSON", key="order-4711", headers={"tenant": "north", "size": 7, "raw": b"\x00\xff"})
        stage.publish(message)
        consumer = stage.consumer(queue)
        consumer.dead_letter(stage.one(consumer), "the body is not JSON")
        (letter,) = self._letters(stage, queue)
        assert (letter.message.id, letter.message.body, letter.reason) == (message.id, message.body, "the body is not JSON")
        assert letter.message.headers.items() >= message.headers.items()
        assert (letter.message.ordering_key, letter.queue) == ("order-4711", queue.name)
        assert letter.died_at > 0

    def test_a_dead_letter_has_one_attempt_more_than_the_delivery_that_was_handed_in(self, stage: Stage) -> None:
        queue = stage.queue()
        stage.fill(queue, 1)
        consumer = stage.consumer(queue)
        consumer.dead_letter(replace(stage.one(consumer), attempts=4), "the ledger counts better")
        (letter,) = self._letters(stage, queue)
        assert letter.attempts == 5

    def test_a_dead_letter_is_not_delivered_any_more(self, stage: Stage) -> None:
        queue = stage.queue()
        self._bury(stage, queue, 1)
        if stage.capabilities.clock_leases:
            stage.expire()
        assert stage.rest(stage.consumer(queue)) == []

    def test_listing_consumes_nothing_and_shows_the_oldest_first(self, stage: Stage) -> None:
        queue = stage.queue()
        buried = self._bury(stage, queue, 4)
        first, second = self._letters(stage, queue), self._letters(stage, queue)
        assert [letter.message.id for letter in first] == buried
        assert first == second

    def test_a_long_list_is_read_in_pages(self, stage: Stage) -> None:
        queue = stage.queue()
        buried = self._bury(stage, queue, 5)
        letters = stage.adapter.dead_letters(queue.name)
        first = letters.list(2)
        second = letters.list(2, first[-1].id)
        third = letters.list(2, second[-1].id)
        assert [[letter.message.id for letter in page] for page in (first, second, third)] == [buried[:2], buried[2:4], buried[4:]]
        assert not letters.list(2, third[-1].id)

    def test_reading_goes_on_behind_a_letter_that_is_gone(self, stage: Stage) -> None:
        queue = stage.queue()
        buried = self._bury(stage, queue, 3)
        letters = stage.adapter.dead_letters(queue.name)
        first, *_ = letters.list(1)
        letters.take([first.id])
        assert [letter.message.id for letter in letters.list(10, first.id)] == buried[1:]

    def test_taking_removes_and_returns_and_a_second_time_finds_nothing(self, stage: Stage) -> None:
        queue = stage.queue()
        buried = self._bury(stage, queue, 3)
        letters = stage.adapter.dead_letters(queue.name)
        wanted = [letter.id for letter in letters.list()][:2]
        assert [letter.message.id for letter in letters.take(wanted)] == buried[:2]
        assert not letters.take(wanted)
        assert [letter.message.id for letter in letters.list()] == buried[2:]

    def test_a_letter_put_back_runs_again_with_a_clean_budget(self, stage: Stage) -> None:
        queue = stage.queue()
        message = stage.message(queue, b'{"order": 4711}', key="order-4711", headers={"tenant": "north", "replays": 0}, max_attempts=2)
        stage.publish(message)
        consumer = stage.consumer(queue)
        consumer.dead_letter(stage.one(consumer), "no such address")
        letters = stage.adapter.dead_letters(queue.name)
        (letter,) = letters.list()
        assert list(letters.put_back([letter.id], {letter.id: {"replays": 1}})) == [letter.id]
        again = stage.one(consumer)
        assert (again.message.id, again.message.body, again.message.ordering_key, again.attempts) == (message.id, message.body, "order-4711", 0)
        assert again.message.headers.items() >= {"tenant": "north", "replays": 1}.items()
        assert not letters.list()

    def test_putting_back_twice_puts_back_once(self, stage: Stage) -> None:
        queue = stage.queue()
        buried = self._bury(stage, queue, 2)
        letters = stage.adapter.dead_letters(queue.name)
        wanted = [letter.id for letter in letters.list()]
        assert list(letters.put_back(wanted)) == wanted
        assert not letters.put_back(wanted)
        assert sorted(ids(stage.exactly(2, stage.consumer(queue)))) == sorted(buried)

    def test_each_letter_put_back_has_its_own_headers_laid_over_it(self, stage: Stage) -> None:
        queue = stage.queue()
        first, second = self._bury(stage, queue, 2)
        letters = stage.adapter.dead_letters(queue.name)
        names = [letter.id for letter in letters.list()]
        letters.put_back(names, {names[0]: {"replays": 1}, names[1]: {"replays": 2}, "of another": {"replays": 3}})
        again = {each.message.id: each.message.headers["replays"] for each in stage.exactly(2, stage.consumer(queue))}
        assert again == {first: 1, second: 2}

    def test_putting_back_one_leaves_the_others(self, stage: Stage) -> None:
        queue = stage.queue()
        buried = self._bury(stage, queue, 3)
        letters = stage.adapter.dead_letters(queue.name)
        letters.put_back([letters.list()[1].id])
        assert [letter.message.id for letter in letters.list()] == [buried[0], buried[2]]
        assert ids(stage.exactly(1, stage.consumer(queue))) == [buried[1]]

    def test_an_old_name_does_not_reach_a_letter_that_died_again(self, stage: Stage) -> None:
        queue = stage.queue()
        self._bury(stage, queue, 1)
        letters = stage.adapter.dead_letters(queue.name)
        (first,) = letters.list()
        letters.put_back([first.id])
        consumer = stage.consumer(queue)
        consumer.dead_letter(stage.one(consumer), "still no such address")
        assert not letters.put_back([first.id])
        (second,) = letters.list()
        assert (second.message.id, second.reason) == (first.message.id, "still no such address")

    def test_s133_a_late_ack_from_before_its_death_does_not_settle_a_job_put_back(self, stage: Stage) -> None:
        queue = stage.queue()
        published = stage.fill(queue, 1)
        consumer = stage.consumer(queue)
        before = stage.one(consumer)
        consumer.dead_letter(before, "too slow")
        letters = stage.adapter.dead_letters(queue.name)
        letters.put_back([letter.id for letter in letters.list()])
        with pytest.raises(LeaseLost):
            consumer.ack([before])
        assert stage.drain(consumer, 1) == published

    def test_letters_that_are_not_there_are_left_out(self, stage: Stage) -> None:
        queue = stage.queue()
        self._bury(stage, queue, 1)
        letters = stage.adapter.dead_letters(queue.name)
        (letter,) = letters.list()
        letters.take([letter.id])
        assert not letters.take([letter.id])
        assert not letters.put_back([letter.id])
        assert not letters.put_back([])

    def test_a_lost_delivery_is_not_buried(self, stage: Stage) -> None:
        queue = stage.queue()
        stage.fill(queue, 1)
        consumer = stage.consumer(queue)
        delivery = stage.one(consumer)
        consumer.release([delivery])
        with pytest.raises(LeaseLost):
            consumer.dead_letter(delivery, "no such address")
        assert self._letters(stage, queue) == []
        stage.one(consumer)

    @pytest.mark.parametrize("reason", REASONS)
    def test_no_reason_however_odd_stops_a_burial(self, stage: Stage, reason: str) -> None:
        queue = stage.queue()
        published = stage.fill(queue, 1)
        consumer = stage.consumer(queue)
        consumer.dead_letter(stage.one(consumer), REASONS[reason])
        (letter,) = self._letters(stage, queue)
        assert [letter.message.id] == published
        assert letter.reason[:3] == REASONS[reason][:3]

    def test_the_depth_counts_jobs_by_status(self, stage: Stage) -> None:
        queue = stage.queue()
        self._bury(stage, queue, 1)
        stage.fill(queue, 5)
        consumer = stage.consumer(queue, prefetch=3)
        consumer.ack(stage.receive(consumer, 3)[:1])
        consumer.close()
        held = stage.consumer(queue, prefetch=1)
        stage.one(held)
        stage.wait_until(lambda: dict(stage.adapter.depth(queue.name)).items() >= {"pending": 3, "running": 1, "failed": 1}.items())

    def test_tidying_leaves_all_that_is_not_done(self, stage: Stage) -> None:
        queue = stage.queue()
        self._bury(stage, queue, 1)
        stage.fill(queue, 3)
        consumer = stage.consumer(queue, prefetch=2)
        done, _ = stage.receive(consumer, 2)
        consumer.ack([done])
        assert stage.adapter.tidy(older_than=3600) == 0
        assert stage.adapter.tidy(older_than=0) + stage.adapter.tidy(older_than=0) <= 1  # what is done in this millisecond is not older yet
        consumer.close()
        stage.exactly(2, stage.consumer(queue))
        assert len(self._letters(stage, queue)) == 1

    @staticmethod
    def _letters(stage: Stage, queue: Queue) -> list[DeadLetter]:
        return list(stage.adapter.dead_letters(queue.name).list())

    @staticmethod
    def _bury(stage: Stage, queue: Queue, count: int) -> list[str]:
        """Publish and bury `count` messages, one after the other; return their ids."""
        consumer: Consumer = stage.consumer(queue)
        buried = []
        for _ in range(count):
            buried += stage.fill(queue, 1)
            consumer.dead_letter(stage.one(consumer), "no such address")
        consumer.close()
        return buried
