"""Several at once: threads of one process, and processes of one host."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from postroom.adapters.errors import Closed, LeaseLost

from .stage import ids
from .strings import Puppet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postroom.adapters.seam import Consumer, Delivery, Queue

    from .stage import Stage

__all__ = ["Processes", "Threads"]


class Threads:
    """Two takes never return the same running job, whoever takes."""

    def test_two_threads_share_the_jobs_and_none_runs_twice(self, stage: Stage) -> None:
        queue = stage.queue()
        published = stage.fill(queue, 100)
        consumers = [stage.consumer(queue, prefetch=2) for _ in range(2)]
        assert sorted(self._drained(stage, consumers, 100)) == published

    def test_messages_published_by_several_threads_all_arrive(self, stage: Stage) -> None:
        queue = stage.queue()
        batches = [[stage.message(queue) for _ in range(25)] for _ in range(4)]
        with ThreadPoolExecutor() as pool:
            published = [identity for part in pool.map(lambda batch: stage.publish(*batch), batches) for identity in part]
        assert sorted(ids(stage.receive(stage.consumer(queue, prefetch=100), 100))) == sorted(published)

    def test_a_waiting_receive_gets_what_is_published_meanwhile(self, stage: Stage) -> None:
        queue = stage.queue()
        consumer = stage.consumer(queue)
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(consumer.receive, 1, stage.harness.patience)
            published = stage.fill(queue, 1)
            assert ids(waiting.result(stage.harness.patience)) == published

    def test_a_delivery_may_be_settled_by_another_thread(self, stage: Stage) -> None:
        queue = stage.queue()
        stage.fill(queue, 5)
        consumer = stage.consumer(queue)
        deliveries = stage.receive(consumer, 5)
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda delivery: consumer.ack([delivery]), deliveries))
        consumer.close()
        assert stage.rest(stage.consumer(queue)) == []

    def test_two_threads_keep_the_order_of_each_key(self, stage: Stage) -> None:
        stage.needs("ordered")
        queue = stage.queue(ordered=True)
        messages = [stage.message(queue, key=f"key-{number % 4}") for number in range(60)]
        stage.publish(*messages)
        begun = self._drained(stage, [stage.consumer(queue, prefetch=3) for _ in range(2)], 60)
        for key in {message.ordering_key for message in messages}:
            own = [message.id for message in messages if message.ordering_key == key]
            assert [identity for identity in begun if identity in own] == own

    def test_of_two_acks_at_once_one_is_lost(self, stage: Stage) -> None:
        queue = stage.queue()
        stage.fill(queue, 10)
        consumer = stage.consumer(queue)
        deliveries = stage.receive(consumer, 10)
        with ThreadPoolExecutor() as pool:
            lost = list(pool.map(lambda delivery: self._is_lost(consumer, delivery), [delivery for delivery in deliveries for _ in range(2)]))
        assert lost.count(True) == lost.count(False) == 10

    def test_an_expired_job_is_taken_by_one_of_two_and_charged_once(self, stage: Stage) -> None:
        stage.needs("clock_leases")
        queue = stage.queue()
        published = stage.fill(queue, 20)
        stage.receive(stage.consumer(queue), 20)
        stage.expire()
        consumers = [stage.consumer(queue, prefetch=20) for _ in range(2)]
        with ThreadPoolExecutor() as pool:
            taken = [delivery for part in pool.map(stage.rest, consumers) for delivery in part]
        taken += stage.exactly(20 - len(taken), *consumers)
        assert sorted(ids(taken)) == published
        assert {delivery.attempts for delivery in taken} == {1} or not stage.capabilities.counts_attempts

    def test_two_operators_who_put_the_same_letters_back_put_them_back_once(self, stage: Stage) -> None:
        queue = stage.queue()
        published = stage.fill(queue, 10)
        consumer = stage.consumer(queue)
        for delivery in stage.receive(consumer, 10):
            consumer.dead_letter(delivery, "no such address")
        letters = [letter.id for letter in stage.adapter.dead_letters(queue.name).list()]
        with ThreadPoolExecutor() as pool:
            parts = list(pool.map(lambda _: list(stage.adapter.dead_letters(queue.name).put_back(letters)), range(2)))
        assert sorted(parts[0] + parts[1]) == sorted(letters)
        assert sorted(ids(stage.exactly(10, consumer))) == published

    def test_closing_the_adapter_ends_a_wait(self, stage: Stage) -> None:
        consumer = stage.consumer(stage.queue())
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(self._wait_for_the_end, consumer, stage.harness.patience)
            stage.adapter.close()
            assert waiting.result() == []

    @staticmethod
    def _wait_for_the_end(consumer: Consumer, seconds: float) -> list[Delivery]:
        """Receive until Closed; only then is the wait over."""
        late = time.monotonic() + seconds
        while time.monotonic() < late:
            try:
                taken = consumer.receive(1, seconds)
            except Closed:
                return []
            if taken:
                return list(taken)
        raise AssertionError("the consumer of a closed adapter still waits")

    @staticmethod
    def _is_lost(consumer: Consumer, delivery: Delivery) -> bool:
        try:
            consumer.ack([delivery])
        except LeaseLost:
            return True
        return False

    @staticmethod
    def _drained(stage: Stage, consumers: Sequence[Consumer], count: int) -> list[str]:
        """Have each consumer, in a thread of its own, take and ack one by one until all have begun `count` together, and see that no more come.

        Return the ids in the order of their beginning.
        """
        begun: list[str] = []
        late = time.monotonic() + stage.harness.patience

        def drain(consumer: Consumer) -> None:
            while len(begun) < count and time.monotonic() < late:
                taken = list(consumer.receive(1, stage.harness.silence))
                begun.extend(ids(taken))  # before the ack, which lets the next of its key go
                consumer.ack(taken)

        with ThreadPoolExecutor() as pool:
            list(pool.map(drain, consumers))
        return begun + ids(stage.exactly(0, *consumers))


class Processes:
    """The same with processes, which may also die."""

    def test_two_processes_never_hold_the_same_job(self, stage: Stage) -> None:
        stage.needs("shared", "competing")
        queue = stage.queue()
        published = stage.fill(queue, 2)
        with self._puppet(stage, queue, "one") as one, self._puppet(stage, queue, "two") as two:
            taken = [*one.ask(f"receive {stage.harness.patience}"), *two.ask(f"receive {stage.harness.patience}")]
            assert sorted(taken) == published
            assert one.ask("ack") + two.ask("ack") == taken

    def test_two_processes_share_the_jobs_and_none_runs_twice(self, stage: Stage) -> None:
        stage.needs("shared")
        queue = stage.queue()
        with self._puppet(stage, queue, "one") as one, self._puppet(stage, queue, "two") as two:
            published = stage.fill(queue, 100)
            assert sorted(self._drained_by(stage, [one, two], 100)) == published

    def test_what_a_killed_process_published_is_still_there(self, stage: Stage) -> None:
        stage.needs("shared")
        queue = stage.queue()
        with self._puppet(stage, queue, "doomed") as doomed:
            assert doomed.ask("publish order-4711") == ["order-4711"]
            doomed.kill()
        assert stage.drain(stage.consumer(queue), 1) == ["order-4711"]

    def test_the_job_of_a_killed_process_is_taken_by_another_one(self, stage: Stage) -> None:
        stage.needs("shared")
        queue = stage.queue()
        published = stage.fill(queue, 1)
        with self._puppet(stage, queue, "doomed") as doomed:
            assert doomed.ask(f"receive {stage.harness.patience}") == published
            doomed.kill()
        if stage.capabilities.clock_leases:
            stage.expire()
        again = stage.one(stage.consumer(queue))
        assert ids([again]) == published
        assert again.attempts == 1 or not stage.capabilities.counts_attempts

    def test_the_job_of_a_process_known_to_be_dead_comes_back_at_once(self, stage: Stage) -> None:
        stage.needs("shared")
        queue = stage.queue()
        published = stage.fill(queue, 1)
        with self._puppet(stage, queue, "doomed") as doomed:
            doomed.ask(f"receive {stage.harness.patience}")
            doomed.kill()
        stage.adapter.abandon("doomed")
        assert stage.drain(stage.consumer(queue), 1) == published

    @staticmethod
    def _drained_by(stage: Stage, puppets: Sequence[Puppet], count: int) -> list[str]:
        """Have all of them drain at once, again until they have done `count` together."""
        done: list[str] = []
        late = time.monotonic() + stage.harness.patience
        while len(done) < count and time.monotonic() < late:
            for puppet in puppets:
                puppet.send(f"drain {stage.harness.silence * 5}")
            done += [identity for puppet in puppets for identity in puppet.answer()]
        return done

    @staticmethod
    @contextmanager
    def _puppet(stage: Stage, queue: Queue, name: str) -> Iterator[Puppet]:
        puppet = Puppet(stage.harness.opener, stage.harness.url, queue.name, name)
        try:
            yield puppet
        finally:
            puppet.kill()
