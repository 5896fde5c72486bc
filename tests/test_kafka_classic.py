"""A classic group: nothing is passed over, nothing is settled for somebody else, nothing is mistaken for a job."""

from __future__ import annotations

import threading
import time
import uuid

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from postroom.adapters import LeaseLost, Unavailable
from postroom.adapters.kafka import classic
from postroom.adapters.kafka.desk import Desk
from postroom.adapters.kafka.keeper import Keeper
from postroom.adapters.kafka.wire import headers_of
from postroom.adapters.weights import Turns
from support.kafka import PATIENCE, Gate, Mock, Opened, Recorder, bodies, opened, wait_until


@pytest.fixture(scope="module")
def mock() -> Mock:
    return Mock()


@pytest.fixture
def topic() -> str:
    return f"emails-{uuid.uuid4().hex[:8]}"


def test_s024_a_failure_is_not_skipped_by_the_next_success(mock, topic):
    mock.produce(topic, b"0", b"1", b"2")
    with opened(mock.url, topic) as first:
        zero, _failed, two = first.receive(3)
        first.consumer.ack([zero, two])
    assert mock.committed(topic) == 1
    with opened(mock.url, topic) as second:
        assert bodies(second.receive(2)) == [b"1", b"2"]


def test_s024_a_failure_is_passed_once_its_dead_letter_is_confirmed(mock, topic):
    mock.produce(topic, b"0", b"1", b"2")
    with opened(mock.url, topic) as first:
        zero, failed, two = first.receive(3)
        first.consumer.ack([zero, two])
        first.consumer.dead_letter(failed, "no such address")
    assert mock.committed(topic) == 3
    with opened(mock.url, f"{topic}.dlq") as letters:
        (letter,) = letters.receive(1)
        assert (letter.message.body, letter.message.headers["postroom-dead-reason"]) == (b"1", "no such address")


def test_s123_what_died_is_held_as_before_while_its_letter_is_not_confirmed_and_its_offset_waits(mock, topic, monkeypatch):
    mock.produce(topic, b"0", b"1")
    with opened(mock.url, topic) as only:
        dead, other = only.receive(2)
        only.consumer.ack([other])
        monkeypatch.setattr(only.consumer, "_bury", _no_graveyard)
        with pytest.raises(Unavailable):
            only.consumer.dead_letter(dead, "no such address")
        assert only.desk.running[topic] == 1
        assert only.rest() == []
        only.consumer.ack([dead])
    assert mock.committed(topic) == 2


def _no_graveyard(_entry, _reason) -> None:
    raise Unavailable("no graveyard")


@pytest.mark.parametrize("bury", [lambda *_: None, _no_graveyard])
def test_s027_a_job_whose_partition_goes_while_its_letter_is_sent_is_lost_to_its_holder(mock, topic, bury, monkeypatch):
    mock.produce(topic, b"0")
    with opened(mock.url, topic) as only:
        (dead,) = only.receive(1)

        def bury_late(entry, reason) -> None:
            with only.desk.changed:
                only.desk.close([entry.place])
            bury(entry, reason)

        monkeypatch.setattr(only.consumer, "_bury", bury_late)
        with pytest.raises((LeaseLost, Unavailable)) as told:
            only.consumer.dead_letter(dead, "no such address")
        assert (told.type is LeaseLost) == (bury is not _no_graveyard)
        assert only.desk.running.total() == 0


class Slammed(Consumer):
    """It breaks down when the test says so, and can't even say good-bye to its group."""

    def __init__(self, settings) -> None:
        super().__init__(settings)
        self.breaks = threading.Event()

    def poll(self, timeout):
        if self.breaks.is_set():
            raise KafkaException(KafkaError(KafkaError._FATAL))  # noqa: SLF001
        return super().poll(timeout)

    def close(self):
        if self.breaks.is_set():
            raise RuntimeError("no good-bye")
        super().close()


def test_a_client_that_can_not_even_be_closed_leaves_nothing_that_could_be_settled(mock, topic):
    mock.produce(topic, b"0")
    gate, clients = Gate(), []

    def make(settings) -> Slammed:
        if clients:
            gate.pass_through()
        clients.append(Slammed(settings))
        return clients[-1]

    with opened(mock.url, topic, make=make) as only:
        (before,) = only.receive(1)
        clients[0].breaks.set()
        assert gate.reached.wait(PATIENCE)
        assert _lost(only, [before]) == [before]
        assert not only.feed.places
        gate.open()
    clients[0].breaks.clear()
    clients[0].close()
    assert mock.committed(topic) <= 0


class Unlucky(Consumer):
    """Its first commit is overtaken by a rebalance."""

    tried = 0

    def commit(self, *, offsets, asynchronous):
        Unlucky.tried += 1
        if Unlucky.tried == 1:
            raise KafkaException(KafkaError(KafkaError.REBALANCE_IN_PROGRESS))
        return super().commit(offsets=offsets, asynchronous=asynchronous)


def test_a_commit_that_failed_is_made_again_though_nothing_else_is_done(mock, topic):
    mock.produce(topic, b"0")
    with opened(mock.url, topic, make=Unlucky) as only:
        only.consumer.ack(only.receive(1))
        wait_until(lambda: mock.committed(topic) == 1)


def test_a_commit_waits_for_no_time_when_many_jobs_are_done(mock, topic, monkeypatch):
    monkeypatch.setattr(classic, "COMMIT_EVERY", 3600.0)
    monkeypatch.setattr(classic, "COMMIT_COUNT", 3)
    mock.produce(topic, b"0", b"1", b"2")
    recorder = Recorder(Spy)
    with opened(mock.url, topic, make=recorder) as only:
        zero, one, two = only.receive(3)
        only.consumer.ack([zero, one])
        mock.produce(topic, b"3")
        (three,) = only.receive(1)
        assert recorder.made[0].named() == []
        only.consumer.ack([two])
        wait_until(lambda: recorder.made[0].named() == [3])
        only.consumer.ack([three])
        mock.produce(topic, b"4")
        only.receive(1)
        assert recorder.made[0].named() == [3]
    assert recorder.made[0].named() == [3, 4]


class Robbed(Consumer):
    """It is told that others have its partitions, when the test says so."""

    def __init__(self, settings) -> None:
        super().__init__(settings)
        self.robbery = threading.Event()
        self.commits = 0

    def subscribe(self, topics, *, on_lost, **options):
        self._on_lost = on_lost
        super().subscribe(topics, on_lost=on_lost, **options)

    def poll(self, timeout):
        if self.robbery.is_set():
            self.robbery.clear()
            self._on_lost(self, self.assignment())
        return super().poll(timeout)

    def commit(self, **options):
        self.commits += 1
        return super().commit(**options)


def test_s027_of_partitions_that_others_have_already_nothing_is_committed(mock, topic, monkeypatch):
    monkeypatch.setattr(classic, "COMMIT_EVERY", 3600.0)
    mock.produce(topic, b"0")
    recorder = Recorder(Robbed)
    with opened(mock.url, topic, make=recorder) as only:
        only.consumer.ack(only.receive(1))
        recorder.made[0].robbery.set()
        wait_until(lambda: not only.feed.places)
    assert recorder.made[0].commits == 0


class Hasty(Consumer):
    """Its group takes its partitions away and gives them back, when the test says so, between the two looks for records of one reading."""

    def __init__(self, settings) -> None:
        super().__init__(settings)
        self.rebalance = threading.Event()

    def subscribe(self, topics, *, on_assign, on_revoke, **options):
        self._on_assign, self._on_revoke = on_assign, on_revoke
        super().subscribe(topics, on_assign=on_assign, on_revoke=on_revoke, **options)

    def consume(self, number, timeout):
        if self.rebalance.is_set():
            self.rebalance.clear()
            partitions = self.assignment()
            self._on_revoke(self, partitions)
            self.incremental_unassign(partitions)
            self._on_assign(self, partitions)
        return super().consume(number, timeout)


@pytest.mark.parametrize("done", [0, 1])
def test_s027_a_record_from_before_a_rebalance_lets_none_be_passed_over_that_is_read_anew(mock, topic, done, monkeypatch):
    monkeypatch.setattr(classic, "LAST_WISH", 0.1)
    mock.produce(topic, b"0", b"1")
    recorder = Recorder(Hasty)
    with opened(mock.url, topic, make=recorder) as only:
        before = only.receive(2)
        only.consumer.ack(before[:done])
        recorder.made[0].rebalance.set()
        mock.produce(topic, b"2")
        wait_until(lambda: not recorder.made[0].rebalance.is_set())
        assert bodies(only.receive(3 - done)) == [b"0", b"1", b"2"][done:]
        assert not _lost(only, only.rest())
    assert max(mock.committed(topic), 0) == done


class Fatal(Consumer):
    """It hands out, as an event, that it has met an error which it can't recover from, in the library's own words."""

    def __init__(self, settings) -> None:
        super().__init__(settings)
        self.breaks = threading.Event()

    def poll(self, timeout):
        if self.breaks.is_set():
            return Message(error=KafkaError(KafkaError._FATAL, "it is over"))  # noqa: SLF001
        return super().poll(timeout)


def test_a_client_that_tells_of_a_fatal_error_is_replaced(mock, topic):
    mock.produce(topic, b"0")
    recorder = Recorder(Fatal)
    with opened(mock.url, topic, make=recorder) as only:
        recorder.made[0].breaks.set()
        wait_until(lambda: len(recorder.made) == 2)
        assert bodies(only.receive(1)) == [b"0"]


@pytest.mark.parametrize(("code", "lives"), [(KafkaError.FENCED_INSTANCE_ID, 1), (KafkaError.UNRELEASED_INSTANCE_ID, 3)])
def test_a_member_whose_name_another_process_has_taken_does_not_take_it_back(code, lives, monkeypatch):
    monkeypatch.setattr("postroom.adapters.kafka.keeper.OUTAGE", 0.0)
    desk, lived = Desk(["emails"], Turns({"emails": 1}), 1), []

    def serve() -> None:
        lived.append(code)
        if len(lived) == 3:
            keeper.stop()
        raise KafkaException(KafkaError(KafkaError._FATAL, f"Fatal error: {KafkaError(code).str()}: its group"))  # noqa: SLF001

    keeper = Keeper({"group.id": "mail", "bootstrap.servers": "host"}, desk, serve)
    keeper.start()
    wait_until(lambda: len(lived) == lives and "group 'mail'" in desk.troubles)
    keeper.wait(0.3)
    assert len(lived) == lives
    assert KafkaError(code).str() in str(desk.troubles["group 'mail'"])
    keeper.stop()
    keeper.wait(PATIENCE)


def test_a_record_with_a_header_that_is_no_text_is_a_job_without_headers_and_its_letter_too(mock, topic):
    for _ in range(1000):  # the interpreter calls warm code in another way, which checks less
        assert headers_of(Message(headers=[("name", b"value")]))
    mock.produce_unreadable(topic, b"0")
    mock.produce(topic, b"1")
    with opened(mock.url, topic) as only:
        bad, good = only.receive(2)
        assert (bad.message.body, bad.message.headers, good.message.body) == (b"0", {}, b"1")
        only.consumer.dead_letter(bad, "no such address")
        only.consumer.ack([good])
    assert mock.committed(topic) == 2


def test_what_is_for_another_group_is_passed_over(mock, topic):
    mock.produce(topic, b"theirs", headers=[("postroom-only-group", b"stock")])
    mock.produce(topic, b"ours")
    with opened(mock.url, topic) as only:
        received = only.receive(1)
        assert bodies(received) == [b"ours"]
        only.consumer.ack(received)
        assert only.rest() == []
    assert mock.committed(topic) == 2


def test_s027_a_completion_from_before_a_revoke_is_never_committed(mock, topic, monkeypatch):
    monkeypatch.setattr(classic, "LAST_WISH", 0.1)
    for partition in range(4):
        mock.produce(topic, b"0", b"1", partition=partition)
    recorder = Recorder(Spy)
    with opened(mock.url, topic, make=recorder) as first:
        held = first.receive(8)
        with opened(mock.url, topic) as second:
            again = second.receive(4)
            second.consumer.ack(again)
            lost = _lost(first, held)
            assert {id(delivery) for delivery in lost} < {id(delivery) for delivery in held}
            assert sorted(bodies(lost)) == sorted(bodies(again))
            wait_until(lambda: sum(mock.committed(topic, partition) == 2 for partition in range(4)) == 4)
    assert {mock.committed(topic, partition) for partition in range(4)} == {2}
    assert recorder.made[0].never_went_back()


def test_s028_losing_a_partition_fails_no_job_and_the_consumer_goes_on(mock, topic, monkeypatch):
    monkeypatch.setattr(classic, "LAST_WISH", 0.1)
    for partition in range(4):
        mock.produce(topic, b"0", partition=partition)
    with opened(mock.url, topic) as first:
        held = first.receive(4)
        with opened(mock.url, topic) as second:
            second.receive(2)
            assert len(_lost(first, held)) == 2
        for partition in range(4):
            mock.produce(topic, b"new", partition=partition)
        assert bodies(first.receive(6)).count(b"new") == 4


def test_s029_a_handler_longer_than_the_poll_interval_is_not_evicted(mock, topic):
    mock.produce(topic, b"0")
    recorder = Recorder(Spy)
    with opened(f"{mock.url}&max.poll.interval.ms=6000", topic, make=recorder) as only:
        (delivery,) = only.receive(1)
        wait_until(lambda: recorder.made[0].spans_polls(7.0))
        only.consumer.ack([delivery])
        mock.produce(topic, b"1")
        assert bodies(only.receive(1)) == [b"1"]
    assert recorder.made[0].assignments == 1
    assert mock.committed(topic) == 1


def test_s030_s057_an_error_event_is_never_a_job_and_is_told_for_as_long_as_it_lasts(mock):
    missing = Opened(mock.url.replace("topics=true", "topics=false"), "no topic of this name can be")
    for _ in range(3):
        with pytest.raises(Unavailable):
            missing.consumer.receive(1, 0.2)
    assert missing.desk.running.total() == 0
    missing.consumer.close()


def test_s031_what_was_handed_over_and_not_done_comes_again(mock, topic):
    mock.produce(topic, b"0")
    with opened(mock.url, topic) as first:
        first.receive(1)
    assert mock.committed(topic) <= 0
    with opened(mock.url, topic) as second:
        assert bodies(second.receive(1)) == [b"0"]


def test_s042_a_tombstone_is_passed_over_and_counted_and_an_empty_body_is_a_job(mock, topic):
    mock.produce(topic, b"good", None, b"", b"also good", key=b"k")
    with opened(mock.url, topic) as only:
        received = only.receive(3)
        assert bodies(received) == [b"good", b"", b"also good"]
        only.consumer.ack(received)
        assert only.consumer.tombstones == 1
    assert mock.committed(topic) == 4


def test_s043_a_partition_of_nothing_but_falsy_messages_is_read_to_its_end(mock, topic):
    mock.produce(topic, None, b"", None)
    with opened(mock.url, topic) as only:
        only.consumer.ack(only.receive(1))
        wait_until(lambda: only.consumer.tombstones == 2)
    assert mock.committed(topic) == 3


def test_s044_a_commit_names_what_is_done_and_never_what_was_polled(mock, topic):
    mock.produce(topic, b"0", b"1")
    recorder = Recorder(Spy)
    with opened(mock.url, topic, make=recorder) as first:
        first.receive(2)
    assert all(offsets for offsets in recorder.made[0].commits)
    assert mock.committed(topic) <= 0


def test_s050_a_new_group_starts_with_the_oldest_job(mock, topic):
    mock.produce(topic, b"0", b"1", b"2")
    with opened(mock.url, topic) as only:
        assert bodies(only.receive(3)) == [b"0", b"1", b"2"]


class Forgetful(Consumer):
    """Its group's offsets can't be read the first time."""

    asked = 0

    def committed(self, partitions, timeout=None):
        Forgetful.asked += 1
        if Forgetful.asked == 1:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001
        return super().committed(partitions, timeout=timeout)


def test_where_a_group_is_is_asked_until_it_is_known_and_never_guessed(mock, topic):
    mock.produce(topic, b"0", b"1")
    with opened(mock.url, topic, make=Forgetful) as only:
        assert bodies(only.receive(2)) == [b"0", b"1"]
    assert mock.committed(topic) <= 0


def test_s052_a_revoke_waits_for_the_jobs_that_are_out_and_drops_those_that_are_not(mock, topic, monkeypatch):
    monkeypatch.setattr(classic, "LAST_WISH", PATIENCE)
    for partition in range(4):
        mock.produce(topic, b"0", b"1", partition=partition)
    with opened(mock.url, topic, prefetch=4, ordered=False) as first:
        held = first.receive(4)
        second = Opened(mock.url, topic)
        wait_until(lambda: first.desk.serving(topic) == 2)
        assert not second.feed.places
        first.consumer.ack(held)
        assert second.feed.keeper.joined.wait(30)
        wait_until(lambda: len(second.feed.places) == 2)
        assert not _lost(first, first.rest())
        second.consumer.close()


def test_s054_after_rebalances_a_full_consumer_reads_on_once_it_has_room(mock, topic):
    for partition in range(4):
        mock.produce(topic, *[b"%d" % partition] * 150, partition=partition)
    with opened(mock.url, topic, prefetch=5) as busy:
        held = busy.receive(5)
        assert busy.rest() == []
        wait_until(lambda: any(place.paused for place in busy.feed.places))
        with opened(mock.url, topic):
            wait_until(lambda: len(busy.feed.places) == 2)
        wait_until(lambda: len(busy.feed.places) == 4)
        wait_until(lambda: bool(held.extend(busy.consumer.receive(5, 0.1)) or busy.desk.running.total() == 5))
        lost = _lost(busy, held)
        done = {delivery.message.id for delivery in held if delivery not in lost}
        while len(done) < 600:
            batch = busy.consumer.receive(5, PATIENCE)
            assert 1 <= len(batch) == busy.desk.running.total() <= 5
            busy.consumer.ack(batch)
            done |= {delivery.message.id for delivery in batch}


def test_what_waits_is_bounded_whatever_the_number_of_partitions(mock, topic, monkeypatch):
    monkeypatch.setattr(classic, "BATCH", 10)
    for partition in range(4):
        mock.produce(topic, *[b"x"] * 300, partition=partition)
    with opened(mock.url, topic, prefetch=5) as only:
        only.receive(5)
        wait_until(lambda: all(place.paused for place in only.feed.places))
        assert 100 <= sum(place.shelf.size for place in only.feed.places) <= 2 * 100 + 4 * classic.BATCH


def test_a_full_consumer_waits_for_room_before_it_pauses_what_would_have_to_be_fetched_again(mock, topic, monkeypatch):
    monkeypatch.setattr(classic, "ROOM", 3600.0)
    monkeypatch.setattr(classic, "BATCH", 10)
    mock.produce(topic, *[b"x"] * 400)
    recorder = Recorder(Spy)
    with opened(mock.url, topic, prefetch=5, make=recorder) as only:
        wait_until(lambda: sum(place.shelf.size for place in only.feed.places) >= 100)
        for _ in range(80):
            batch = only.receive(5)
            assert sum(place.shelf.size for place in only.feed.places) < 100 + classic.BATCH
            only.consumer.ack(batch)
        assert recorder.made[0].pauses == 0


def test_the_end_of_a_partition_that_comes_in_one_batch_with_its_last_records_passes_over_none_of_them(mock, topic):
    mock.produce(topic, b"0", b"1", b"2")
    with opened(mock.url, topic, make=Greedy) as only:
        assert bodies(only.receive(3)) == [b"0", b"1", b"2"]
    assert mock.committed(topic) <= 0


def test_reading_stops_at_a_bounded_distance_from_a_job_that_is_stuck(mock, topic, monkeypatch):
    monkeypatch.setattr("postroom.adapters.kafka.assigned.SPAN", 50)
    mock.produce(topic, *[b"x"] * 2000)
    with opened(mock.url, topic, prefetch=20) as only:
        stuck, *others = only.receive(20)
        only.consumer.ack(others)
        (place,) = [place for place in only.feed.places if place.partition == 0]
        wait_until(lambda: bool(only.consumer.ack(only.consumer.receive(20, 0.1)) or place.wants_pause))
        only.consumer.ack(only.rest(0.3))
        assert 50 <= place.watermark.span < 50 + 2 * classic.BATCH
        only.consumer.ack([stuck])
        assert only.receive(1)


def test_a_released_job_is_taken_again_before_younger_ones_and_no_rebalance_is_waited_for(mock, topic):
    mock.produce(topic, b"0", b"1", b"2")
    with opened(mock.url, topic, prefetch=2) as only:
        zero, one = only.receive(2)
        only.consumer.release([one, zero])
        assert bodies(only.receive(2)) == [b"0", b"1"]


def test_in_an_ordered_queue_another_key_of_the_same_partition_goes_on(mock, topic):
    for key, value in ((b"a", b"a1"), (b"a", b"a2"), (b"b", b"b1"), (b"a", b"a3")):
        mock.produce(topic, value, key=key)
    with opened(mock.url, topic, ordered=True) as only:
        a1, b1 = only.receive(2)
        assert bodies([a1, b1]) == [b"a1", b"b1"]
        assert only.rest() == []
        only.consumer.release([a1])
        (again,) = only.receive(1)
        only.consumer.ack([again])
        assert bodies(only.rest()) == [b"a2"]


def test_a_message_of_anyone_is_a_job_with_an_id_made_of_its_place(mock, topic):
    mock.produce(topic, b"plain", key=b"\xff")
    with opened(mock.url, topic) as only:
        (delivery,) = only.receive(1)
        assert (delivery.message.id, delivery.message.ordering_key) == (f"{topic}-0-0", "\\xff")


def _lost(made: Opened, deliveries) -> list:
    try:
        made.consumer.ack(deliveries)
    except LeaseLost as lost:
        return list(lost.lost)
    return []


class Spy(Consumer):
    """A real client that notes what is asked of it."""

    def __init__(self, settings) -> None:
        super().__init__(settings)
        self.commits: list[list] = []
        self.assignments = self.pauses = 0
        self._started = time.monotonic()
        self._polled_at = self._started

    def poll(self, timeout):
        self._polled_at = time.monotonic()
        return super().poll(timeout)

    def commit(self, *, offsets, asynchronous):
        self.commits.append(offsets)
        return super().commit(offsets=offsets, asynchronous=asynchronous)

    def pause(self, partitions):
        self.pauses += 1
        super().pause(partitions)

    def named(self) -> list[int]:
        """The offsets of the first partition that were committed, one after the other."""
        return [offset.offset for commit in self.commits for offset in commit if offset.partition == 0]

    def incremental_assign(self, partitions):
        self.assignments += 1
        super().incremental_assign(partitions)

    def never_went_back(self) -> bool:
        """Whether the offsets committed for each partition only ever grew."""
        grown: dict[int, list[int]] = {}
        for offset in (offset for commit in self.commits for offset in commit):
            grown.setdefault(offset.partition, []).append(offset.offset)
        return all(offsets == sorted(offsets) for offsets in grown.values())

    def spans_polls(self, seconds: float) -> bool:
        """Whether it was polled for so long, and a moment ago."""
        return self._polled_at - self._started > seconds


class Greedy(Consumer):
    """A real client that fills its batches up to the ends of all partitions."""

    def consume(self, number, timeout):
        return super().consume(number, max(timeout, 0.5))
