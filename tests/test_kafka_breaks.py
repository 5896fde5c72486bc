"""Clients of a classic group that break at the worst moment: nothing is passed over, and nothing is settled for somebody else."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from postroom.adapters.kafka import classic
from postroom.adapters.kafka.desk import Desk
from postroom.adapters.kafka.keeper import Keeper
from postroom.adapters.weights import Turns
from support.kafka import PATIENCE, Gate, Recorder, bodies, lost_by, opened, wait_until


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
        assert lost_by(only, [before]) == [before]
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
        assert not lost_by(only, only.rest())
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
