"""How much a classic consumer reads ahead: what waits is bounded, and a full consumer reads on once it has room."""

from __future__ import annotations

from postroom.adapters.kafka import classic
from support.kafka import PATIENCE, Greedy, Recorder, Spy, bodies, lost_by, opened, wait_until


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
        lost = lost_by(busy, held)
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
