"""On a real cluster: what its stand-in inside the client library can't show."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition, murmur2
from confluent_kafka.admin import AdminClient, NewTopic

from postroom.adapters import AccessDenied, ConfigurationError, Message, Queue, TopologyMismatch, Unavailable, Verdict, connect
from postroom.adapters.kafka import classic
from support.kafka import QUICK, bodies, wait_until


@pytest.fixture
def url(kafka_bootstrap: str) -> str:
    return f"kafka://{kafka_bootstrap}?{QUICK}"


@pytest.fixture
def admin(kafka_bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})


def message(name: str, number: int = 0, *, key: str | None = None) -> Message:
    return Message(id=f"{name}-{number:04}", queue=name, body=b"%d" % number, ordering_key=key)


def receive(consumer, count: int) -> list:
    received, late = [], time.monotonic() + 30
    while len(received) < count and time.monotonic() < late:
        received += consumer.receive(count - len(received), 0.2)
    assert len(received) == count
    return received


def places(bootstrap: str, topic: str) -> dict[str, int]:
    """In which partition each key of a topic lies."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "places", "enable.partition.eof": True, "log_level": 0})
    count = len(reader.list_topics(topic, timeout=30).topics[topic].partitions)
    reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(count)])
    found, ends = {}, 0
    while ends < count:
        record = reader.poll(30)
        if record.error() is None:
            found[record.key().decode()] = record.partition()
        else:
            ends += 1
    reader.close()
    return found


def test_s041_a_message_without_a_key_is_refused_for_good_by_a_compacted_topic_and_stops_no_other(url, name):
    with closing(connect(f"{url}&partitions=1&topic.cleanup.policy=compact")) as adapter:
        adapter.ensure([Queue(name=name)])
        (refused,) = adapter.publish([message(name)])
        (good,) = adapter.publish([message(name, 1, key="order-4711")])
        assert (refused.verdict, good.verdict) == (Verdict.REFUSED, Verdict.CONFIRMED)
        assert "takes no message without an ordering key" in refused.reason


def test_a_message_that_is_too_large_for_its_topic_is_refused_and_those_of_its_batch_are_not(url, name):
    with closing(connect(f"{url}&partitions=1&topic.max.message.bytes=20000")) as adapter:
        adapter.ensure([Queue(name=name)])
        sizes = [30_000 if number == 7 else 5_000 for number in range(20)]
        outcomes = adapter.publish([Message(id=f"{number}", queue=name, body=b"x" * size) for number, size in enumerate(sizes)])
        assert [outcome.verdict for outcome in outcomes] == [Verdict.REFUSED if size > 20_000 else Verdict.CONFIRMED for size in sizes]
        assert "too large" in outcomes[7].reason
        assert adapter.depth(name)["pending"] == 19


def test_s048_a_key_lands_where_java_s_clients_put_it_and_not_where_librdkafka_s_default_would(url, kafka_bootstrap, name):
    keys = [f"order-{number}" for number in range(100)]
    with closing(connect(f"{url}&partitions=6")) as ours, closing(connect(f"{url}&partitioner=consistent_random")) as theirs:
        ours.ensure([Queue(name=name), Queue(name=f"{name}-crc")])
        ours.publish([message(name, number, key=key) for number, key in enumerate(keys)])
        theirs.publish([message(f"{name}-crc", number, key=key) for number, key in enumerate(keys)])
    assert places(kafka_bootstrap, name) == {key: murmur2(key.encode(), 6) for key in keys}
    assert places(kafka_bootstrap, name) != places(kafka_bootstrap, f"{name}-crc")


def test_s049_partitions_are_not_added_to_an_ordered_queue_in_which_jobs_wait_unless_that_is_forced(url, admin, name):
    ordered = [Queue(name=name, ordered=True)]
    with closing(connect(f"{url}&partitions=2")) as two, closing(connect(f"{url}&partitions=6")) as six:
        two.ensure(ordered)
        two.publish([message(name, number, key="order-4711") for number in range(50)])
        with pytest.raises(TopologyMismatch, match=r"expected partitions 6, but it is there with partitions 2.*50 jobs wait.*partitions\.force=yes"):
            six.ensure(ordered)
        assert len(admin.list_topics(name, timeout=10).topics[name].partitions) == 2
    with closing(connect(f"{url}&partitions=6&partitions.force=yes")) as forced:
        forced.ensure(ordered)
        forced.ensure(ordered)
    assert len(admin.list_topics(name, timeout=10).topics[name].partitions) == 6


def test_s049_partitions_are_added_to_an_ordered_queue_once_all_its_groups_have_done_what_waited(url, name):
    ordered = [Queue(name=name, ordered=True, groups=("mail", "stock"))]
    with closing(connect(f"{url}&partitions=2")) as two, closing(connect(f"{url}&partitions=6")) as six:
        two.ensure(ordered)
        two.publish([message(name, number, key=f"order-{number}") for number in range(10)])
        for group in ("mail", "stock"):
            with pytest.raises(TopologyMismatch, match="10 jobs wait"):
                six.ensure(ordered)
            consumer = two.consume({f"{name}.{group}": 1}, group="any", prefetch=10, name="w")
            consumer.ack(receive(consumer, 10))
            consumer.close()
        six.ensure(ordered)


def test_partitions_are_added_to_a_queue_without_order_and_taken_from_none(url, name):
    with closing(connect(f"{url}&partitions=2")) as two, closing(connect(f"{url}&partitions=6")) as six:
        two.ensure([Queue(name=name)])
        two.publish([message(name)])
        with pytest.raises(TopologyMismatch, match="expected partitions 6, but it is there with partitions 2"):
            six.ensure([Queue(name=name)], passive=True)
        six.ensure([Queue(name=name)])
        with pytest.raises(TopologyMismatch, match="expected partitions 2, but it is there with partitions 6"):
            two.ensure([Queue(name=name)])


def test_s050_to_skip_a_backlog_is_for_new_groups_and_not_for_partitions_that_are_added(url, name):
    with closing(connect(f"{url}&partitions=1&skip.backlog=yes")) as one, closing(connect(f"{url}&partitions=4&skip.backlog=yes")) as four:
        one.ensure([Queue(name=name)])
        one.publish([message(name, 0)])
        consumer = one.consume({name: 1}, group="g", prefetch=20, name="w")
        one.publish([message(name, 1)])
        new = receive(consumer, 1)
        assert bodies(new) == [b"1"]
        consumer.ack(new)
        consumer.close()
        four.ensure([Queue(name=name)])
        four.publish([message(name, number, key=f"order-{number}") for number in range(2, 18)])
        assert len(receive(four.consume({name: 1}, group="g", prefetch=20, name="w"), 16)) == 16


def test_s051_an_offset_that_is_gone_stops_the_consumer_with_the_numbers_and_is_no_jump(url, admin, name):
    with closing(connect(f"{url}&partitions=1")) as adapter:
        adapter.ensure([Queue(name=name)])
        adapter.publish([message(name, number) for number in range(10)])
        first = adapter.consume({name: 1}, group="g", prefetch=5, name="w")
        first.ack(receive(first, 3))
        first.close()
        for future in admin.delete_records([TopicPartition(name, 0, 8)]).values():
            future.result(30)
        second = adapter.consume({name: 1}, group="g", prefetch=5, name="w")
        for _ in range(3):
            with pytest.raises(Unavailable, match=rf"{name}\[0\].*3"):
                _receive_until_told(second)


def test_s051_a_partition_whose_offset_is_gone_is_told_though_another_of_its_topic_is_read(url, admin, name):
    with closing(connect(f"{url}&partitions=2")) as adapter:
        adapter.ensure([Queue(name=name)])
        keys = {murmur2(key.encode(), 2): key for key in ("order-1", "order-2", "order-3", "order-4")}
        adapter.publish([message(name, number, key=keys[0]) for number in range(10)])
        first = adapter.consume({name: 1}, group="g", prefetch=5, name="w")
        first.ack(receive(first, 3))
        first.close()
        for future in admin.delete_records([TopicPartition(name, 0, 8)]).values():
            future.result(30)
        second = adapter.consume({name: 1}, group="g", prefetch=5, name="w")
        for number in range(10, 12):
            adapter.publish([message(name, number, key=keys[1])])
            wait_until(lambda number=number: _bodies_or_none(second) == [b"%d" % number])
            with pytest.raises(Unavailable, match=rf"{name}\[0\].*3"):
                _receive_until_told(second)


def _receive_until_told(consumer) -> None:
    late = time.monotonic() + 30
    while time.monotonic() < late:
        assert not consumer.receive(1, 0.2)


def test_s052_a_rebalance_repeats_no_job_that_was_done_and_runs_none_twice(url, name, monkeypatch):
    monkeypatch.setattr(classic, "LAST_WISH", 20.0)
    with closing(connect(f"{url}&partitions=4")) as one, closing(connect(f"{url}&partitions=4")) as two:
        one.ensure([Queue(name=name)])
        one.publish([message(name, number) for number in range(40)])
        first = one.consume({name: 1}, group="g", prefetch=8, name="first")
        held = receive(first, 8)
        with ThreadPoolExecutor() as pool:
            joining = pool.submit(two.consume, {name: 1}, group="g", prefetch=8, name="second")
            time.sleep(0.5)
            first.ack(held)
            second = joining.result()
        done = bodies(held)
        while len(done) < 40:
            for consumer in (first, second):
                batch = consumer.receive(8, 0.2)
                consumer.ack(batch)
                done += bodies(batch)
        assert sorted(done) == sorted(b"%d" % number for number in range(40))
        assert not [*first.receive(8, 0.5), *second.receive(8, 0.5)]


def test_s057_a_worker_whose_topic_is_gone_does_not_start(url, admin, name):
    with closing(connect(url)) as adapter:
        adapter.ensure([Queue(name=name)])
        delete(admin, name)
        with pytest.raises(ConfigurationError, match=f"its topic '{name}' is gone"):
            adapter.consume({name: 1}, group="g", prefetch=5, name="w")


def test_s057_a_topic_that_goes_is_told_for_as_long_as_it_lasts_and_work_goes_on_when_it_is_back(url, admin, name):
    with closing(connect(f"{url}&partitions=1&topic.metadata.refresh.interval.ms=500")) as adapter:
        adapter.ensure([Queue(name=name)])
        consumer = adapter.consume({name: 1}, group="g", prefetch=5, name="w")
        delete(admin, name)
        wait_until(lambda: _is_told(consumer, name))
        assert all(_is_told(consumer, name) for _ in range(3))
        adapter.ensure([Queue(name=name)])
        wait_until(lambda: adapter.publish([message(name, 1)])[0].verdict is Verdict.CONFIRMED)
        wait_until(lambda: b"1" in _bodies_or_none(consumer))


def delete(admin: AdminClient, topic: str) -> None:
    for future in admin.delete_topics([topic]).values():
        future.result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics)


def _is_told(consumer, name: str) -> bool:
    try:
        consumer.receive(1, 0.2)
    except Unavailable as told:
        return name in str(told)
    return False


def _bodies_or_none(consumer) -> list[bytes]:
    with suppress(Unavailable):
        return bodies(consumer.receive(1, 0.2))
    return []


def test_a_share_group_s_lock_is_the_longest_lease_that_the_cluster_allows_and_is_never_shortened_under_its_members(url, name):
    with closing(connect(f"{url.partition('?')[0]}?mode=share")) as adapter:
        for lease, hold in ((45.0, 43.0), (20.0, 43.0), (600.0, 58.0), (1.0, 58.0)):
            adapter.ensure([Queue(name=name, lease=lease)])
            assert adapter.prepare([name], group=name)[name].seconds == hold
        assert "share.record.lock.duration.ms=60000" in adapter.prepare([name], group=name)[name].why
        assert adapter.prepare([name], group="other")[name].seconds == 13
        with pytest.raises(ConfigurationError, match="is not declared"):
            adapter.prepare(["nobody's"], group="g")
    with closing(connect(url)) as classic:
        assert classic.prepare([name], group="g") == {}


def test_the_new_protocol_of_groups_does_the_same(url, name):
    plain = url.partition("?")[0]
    with closing(connect(f"{plain}?partitions=2&group.protocol=consumer")) as adapter:
        adapter.ensure([Queue(name=name)])
        adapter.publish([message(name, number) for number in range(10)])
        first = adapter.consume({name: 1}, group="g848", prefetch=10, name="w")
        first.ack(receive(first, 10))
        first.close()
        second = adapter.consume({name: 1}, group="g848", prefetch=10, name="w")
        assert not second.receive(10, 1)
        assert adapter.depth(name)["pending"] == 0


def test_a_replay_leaves_nothing_that_looks_like_a_waiting_job(url, name):
    with closing(connect(f"{url}&partitions=1")) as adapter:
        adapter.ensure([Queue(name=name)])
        adapter.publish([message(name)])
        consumer = adapter.consume({name: 1}, group="g", prefetch=5, name="w")
        consumer.dead_letter(receive(consumer, 1)[0], "no such address")
        letters = adapter.dead_letters(name)
        letters.put_back([letter.id for letter in letters.list()])
        consumer.ack(receive(consumer, 1))
        wait_until(lambda: adapter.depth(name) == {"pending": 0, "running": 0, "failed": 0})


def test_a_replay_in_another_process_finds_what_was_handled_before(url, name):
    with closing(connect(f"{url}&partitions=1")) as adapter:
        adapter.ensure([Queue(name=name)])
        adapter.publish([message(name, number) for number in range(3)])
        consumer = adapter.consume({name: 1}, group="g", prefetch=5, name="w")
        for delivery in receive(consumer, 3):
            consumer.dead_letter(delivery, "no such address")
        wanted = [letter.id for letter in adapter.dead_letters(name).list()]
        adapter.dead_letters(name).take(wanted[:1])
    with closing(connect(url)) as other:
        assert other.dead_letters(name).put_back(wanted) == wanted[1:]
    with closing(connect(url)) as third:
        assert not third.dead_letters(name).put_back(wanted)
        assert third.depth(name)["failed"] == 0


def test_a_dead_letter_has_the_original_bytes_key_headers_and_coordinates(url, kafka_bootstrap, name):
    producer = Producer({"bootstrap.servers": kafka_bootstrap})
    with closing(connect(f"{url}&partitions=1")) as adapter:
        adapter.ensure([Queue(name=name)])
        producer.produce(name, b"\xff not ours", b"\xfe", headers=[("a", b"1"), ("a", b"2"), ("none", None)])
        assert producer.flush(30) == 0
        consumer = adapter.consume({name: 1}, group="g", prefetch=5, name="w")
        consumer.dead_letter(receive(consumer, 1)[0], "foreign")
    reader = Consumer({"bootstrap.servers": kafka_bootstrap, "group.id": "reader", "log_level": 0})
    reader.assign([TopicPartition(f"{name}.dlq", 0, OFFSET_BEGINNING)])
    letter = reader.poll(30)
    headers = letter.headers()
    reader.close()
    assert (letter.key(), letter.value(), headers[:3]) == (b"\xfe", b"\xff not ours", [("a", b"1"), ("a", b"2"), ("none", None)])
    assert dict(headers)["postroom-dead-from"] == f"{name}[0]@0".encode()


def test_a_new_lease_makes_no_job_of_what_the_groups_have_done(url, name):
    with closing(connect(url)) as adapter:
        adapter.ensure([Queue(name=name, lease=30.0)])
        adapter.publish([message(name, number) for number in range(3)])
        with closing(adapter.consume({name: 1}, group=name, prefetch=10, name="worker")) as consumer:
            consumer.ack(receive(consumer, 3))
        assert adapter.depth(name)["pending"] == 0
        adapter.ensure([Queue(name=name, lease=60.0)])
        assert adapter.depth(name)["pending"] == 0


@pytest.mark.parametrize("own", ["postroom.queues", "__consumer_offsets"])
def test_a_topic_that_is_not_for_jobs_becomes_no_queue(url, own):
    with closing(connect(url)) as adapter, pytest.raises(ConfigurationError, match=f"'{own}' is no name for a queue"):
        adapter.ensure([Queue(name=own)])


def test_a_topic_with_the_dead_letters_of_one_queue_does_not_become_another_one_nor_the_other_way_round(url, name):
    with closing(connect(url)) as adapter:
        adapter.ensure([Queue(name=name)])
        with pytest.raises(TopologyMismatch, match=f"topic '{name}' for its dead letters, but the jobs of '{name}' are there"):
            adapter.ensure([Queue(name=f"{name}-2", dead_letter=name)])
        with pytest.raises(TopologyMismatch, match=f"topic '{name}.dlq' for its jobs, but the dead letters of '{name}' are there"):
            adapter.ensure([Queue(name=f"{name}.dlq")])


def test_a_topic_of_others_becomes_a_queue_and_stays_as_it_is(url, admin, name):
    for future in admin.create_topics([NewTopic(name, 3, 1)]).values():
        future.result(30)
    with closing(connect(url)) as adapter:
        adapter.ensure([Queue(name=name)])
        assert name in adapter.carriers()
    assert len(admin.list_topics(name, timeout=10).topics[name].partitions) == 3


def test_a_login_that_the_cluster_does_not_take_is_told_without_its_password(kafka_bootstrap, monkeypatch):
    monkeypatch.setattr("postroom.adapters.kafka.topology.PATIENCE", 2.0)
    with closing(connect(f"kafka://user:p4ssw0rd@{kafka_bootstrap}?security.protocol=SASL_PLAINTEXT")) as adapter:
        with pytest.raises((AccessDenied, Unavailable)) as refused:
            adapter.ensure([Queue(name="emails")])
        assert "p4ssw0rd" not in str(refused.value)
