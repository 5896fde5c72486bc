"""A classic group: nothing is passed over, nothing is settled for somebody else, nothing is mistaken for a job."""

from __future__ import annotations

import pytest
from confluent_kafka import Message

from postroom.adapters import LeaseLost, Unavailable
from postroom.adapters.kafka import classic
from postroom.adapters.kafka.wire import headers_of
from support.kafka import PATIENCE, Opened, Recorder, Spy, bodies, lost_by, opened, wait_until


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
            lost = lost_by(first, held)
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
            assert len(lost_by(first, held)) == 2
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
        assert not lost_by(first, first.rest())
        second.consumer.close()


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
