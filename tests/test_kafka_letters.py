"""Dead letters on a real cluster: a replay that is broken off loses nothing and doubles nothing, and a topic of letters may go."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from postroom.adapters import Adapter, Consumer, Delivery, Message, Queue, Unavailable, connect
from postroom.adapters.kafka import index, transactions
from postroom.adapters.kafka.adapter import KafkaAdapter
from support.kafka import QUICK, bodies, wait_until
from support.kafka_server import Server


@pytest.fixture
def url(kafka_bootstrap: str) -> str:
    return f"kafka://{kafka_bootstrap}?{QUICK}&partitions=1"


@pytest.fixture
def server(kafka_bootstrap: str) -> Server:
    return Server(kafka_bootstrap)


def receive(consumer: Consumer, count: int) -> list[Delivery]:
    received: list[Delivery] = []
    late = time.monotonic() + 30
    while len(received) < count and time.monotonic() < late:
        received += consumer.receive(count - len(received), 0.2)
    assert len(received) == count
    return received


def bury(adapter: Adapter, name: str, *texts: bytes) -> list[str]:
    """Messages that have died; the ids of their letters."""
    adapter.publish([Message(id=f"{name}-{text.decode()}", queue=name, body=text) for text in texts])
    with closing(adapter.consume({name: 1}, group="g", prefetch=10, name="gravedigger")) as consumer:
        for delivery in receive(consumer, len(texts)):
            consumer.dead_letter(delivery, "no such address")
    return [letter.id for letter in adapter.dead_letters(name).list()]


KILLED = """
import os, signal, sys
from postroom.adapters import connect
from postroom.adapters.kafka.adapter import KafkaAdapter

bury = KafkaAdapter._bury

def bury_and_die(*how):
    bury(*how)
    os.kill(os.getpid(), signal.SIGKILL)

KafkaAdapter._bury = bury_and_die
consumer = connect(sys.argv[1]).consume({sys.argv[2]: 1}, group="g", prefetch=1, name="killed")
while not (received := consumer.receive(1, 1)):
    pass
consumer.dead_letter(received[0], "first")
"""


@pytest.mark.parametrize("how", [QUICK, "mode=share"])
def test_s088_a_worker_killed_between_the_letter_and_the_commit_leaves_one_letter(kafka_bootstrap, name, how, server):
    url = f"kafka://{kafka_bootstrap}?partitions=1&{how}"
    with closing(connect(url)) as adapter:
        adapter.ensure([Queue(name=name)])
        adapter.publish([Message(id=name, queue=name, body=b"1")])
        killed = subprocess.run([sys.executable, "-c", KILLED, url, name], check=False, timeout=60)
        assert killed.returncode == -signal.SIGKILL
        letters = adapter.dead_letters(name)
        [first] = letters.list()
        with closing(adapter.consume({name: 1}, group="g", prefetch=10, name="successor")) as consumer:
            consumer.dead_letter(receive(consumer, 1)[0], "second")
            assert server.ends(f"{name}.dlq", 1) == [2], "both letters are there"
            assert (letters.list(), letters.count(), adapter.depth(name)["failed"], first.reason) == ([first], 1, 1, "first")
            assert letters.put_back([f"{name}.dlq@1"]) == []
            assert letters.put_back([first.id]) == [first.id]
            assert bodies(receive(consumer, 1)) == [b"1"]
            assert not consumer.receive(10, 0.5)
        with closing(connect(url)) as other:
            assert (letters.list(), other.dead_letters(name).list(), other.depth(name)["failed"]) == ([], [], 0)


def test_a_second_letter_about_a_death_that_was_handled_in_between_is_handled_too(url, name, monkeypatch):
    late = []
    bury_once = KafkaAdapter._bury  # noqa: SLF001 - what a worker does that gets a delivery once more
    monkeypatch.setattr(KafkaAdapter, "_bury", lambda *how: (bury_once(*how), late.append(how)))
    with closing(connect(url)) as adapter:
        adapter.ensure([Queue(name=name)])
        replayed, discarded = bury(adapter, name, b"1", b"2")
        letters = adapter.dead_letters(name)
        letters.put_back([replayed])
        letters.take([discarded])
        for how in late:
            bury_once(*how)
        with closing(connect(url)) as other:
            for each in (letters, other.dead_letters(name)):
                assert (each.list(), each.count(), each.put_back([f"{name}.dlq@{offset}" for offset in range(10)])) == ([], 0, [])
        with closing(adapter.consume({name: 1}, group="g", prefetch=10, name="w")) as consumer:
            consumer.dead_letter(receive(consumer, 1)[0], "it died again")
        assert [letter.reason for letter in letters.list()] == ["it died again"], "what was put back is another record: its death is another"


STOPPED = """
import sys, threading
from postroom.adapters import connect
from postroom.adapters.kafka import transactions

class Stopped(transactions.Producer):
    def commit_transaction(self, patience):
        self.flush(30)  # what was produced is on the server
        if sys.argv[4] == "after":
            super().commit_transaction(patience)
        print("stopped", flush=True)
        threading.Event().wait()

transactions.Producer = Stopped
connect(sys.argv[1]).dead_letters(sys.argv[2]).put_back([sys.argv[3]])
"""


@pytest.mark.parametrize(("when", "left"), [("before", 3), ("after", 2)])
def test_who_is_killed_while_putting_back_loses_nothing_and_doubles_nothing(url, name, when, left):
    with closing(connect(url)) as adapter:
        adapter.ensure([Queue(name=name)])
        ids = bury(adapter, name, b"1", b"2", b"3")
        command = [sys.executable, "-c", STOPPED, url, name, ids[0], when]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as operator:
            assert operator.stdout.readline() == "stopped\n"
            operator.send_signal(signal.SIGKILL)
        letters = adapter.dead_letters(name)
        wait_until(lambda: len(letters.list()) == left)  # what was committed can be read a moment later
        assert letters.put_back(ids) == ids[-left:]
        assert letters.put_back(ids) == []
        consumer = adapter.consume({name: 1}, group="g", prefetch=10, name="w")
        again = receive(consumer, 3)
        assert sorted(bodies(again)) == [b"1", b"2", b"3"]
        consumer.ack(again)
        wait_until(lambda: adapter.depth(name) == {"pending": 0, "running": 0, "failed": 0})


def test_s055_an_operator_whom_another_has_fenced_off_puts_nothing_back_and_its_client_is_not_used_again(url, name, monkeypatch):
    with closing(connect(url)) as one, closing(connect(url)) as other:
        one.ensure([Queue(name=name)])
        ids = bury(one, name, b"1", b"2")
        slow = _Interrupted.by(lambda: other.dead_letters(name).put_back(ids[:1]), monkeypatch)
        with pytest.raises(Unavailable, match=r"another operator has begun meanwhile.*; run it again"):
            one.dead_letters(name).put_back(ids)
        assert slow.interruptions == 1
        assert one.dead_letters(name).put_back(ids) == ids[1:]
        consumer = one.consume({name: 1}, group="g", prefetch=10, name="w")
        assert sorted(bodies(receive(consumer, 2))) == [b"1", b"2"]
        assert not consumer.receive(10, 1)


def test_an_operator_who_comes_second_sees_what_the_first_has_put_back(url, name, monkeypatch):
    with closing(connect(url)) as one, closing(connect(url)) as other:
        one.ensure([Queue(name=name)])
        ids = bury(one, name, b"1", b"2")

        class Late(Producer):
            def init_transactions(self, patience):
                monkeypatch.setattr("postroom.adapters.kafka.transactions.Producer", Producer)
                assert other.dead_letters(name).put_back(ids[:1]) == ids[:1]
                super().init_transactions(patience)

        monkeypatch.setattr("postroom.adapters.kafka.transactions.Producer", Late)
        assert one.dead_letters(name).put_back(ids) == ids[1:]


class _Interrupted:
    """In the middle of the first operator's transaction another one comes, and is done with its own."""

    interruptions = 0

    @classmethod
    def by(cls, another, monkeypatch) -> type[_Interrupted]:
        class Slow(Producer):
            def commit_transaction(self, patience):
                if not cls.interruptions:
                    cls.interruptions += 1
                    another()
                super().commit_transaction(patience)

        cls.interruptions = 0
        monkeypatch.setattr("postroom.adapters.kafka.transactions.Producer", Slow)
        return cls


def test_an_operator_at_work_is_fenced_off_between_two_transactions_too_and_one_who_had_a_rest_is_not(url, name, monkeypatch):
    monkeypatch.setattr(transactions, "IDLE", 3600.0)
    with closing(connect(url)) as one, closing(connect(url)) as other:
        one.ensure([Queue(name=name)])
        ids = bury(one, name, b"1", b"2", b"3", b"4")
        letters = one.dead_letters(name)
        assert letters.put_back(ids[:1]) == ids[:1]
        assert other.dead_letters(name).put_back(ids[:2]) == ids[1:2]
        with pytest.raises(Unavailable, match=r"another operator has begun meanwhile.*; run it again"):
            letters.put_back(ids[:3])
        assert [letter.id for letter in letters.list()] == ids[2:]
        monkeypatch.setattr(transactions, "IDLE", 0.0)
        assert [letters.put_back(ids[:3]), [*other.dead_letters(name).take(ids[:3])], letters.put_back(ids)] == [ids[2:3], [], ids[3:]]


def test_what_was_handled_shows_at_once_is_handled_once_and_leaves_the_disk(url, name, server, monkeypatch):
    monkeypatch.setattr(index, "KEPT", 0)
    with closing(connect(url)) as adapter:
        adapter.ensure([Queue(name=name)])
        ids = bury(adapter, name, *(b"%d" % number for number in range(8)))
        letters = adapter.dead_letters(name)
        for left, letter in zip(range(7, -1, -1), ids, strict=True):
            assert (letters.put_back([letter]), letters.put_back([letter]), letters.count()) == ([letter], [], left)
        earliest = {TopicPartition(f"{name}.dlq", 0): OffsetSpec.earliest()}
        wait_until(lambda: next(iter(server.admin.list_offsets(earliest).values())).result(30).offset >= len(ids))


def test_a_topic_of_letters_that_was_deleted_and_made_again_shows_the_new_ones_only(url, name, server):
    with closing(connect(url)) as adapter:
        adapter.ensure([Queue(name=name)])
        bury(adapter, name, b"1", b"2", b"3")
        server.delete(f"{name}.dlq")
        wait_until(lambda: adapter.dead_letters(name).list() == [])
        assert adapter.depth(name)["failed"] == 0
        adapter.ensure([Queue(name=name)])
        bury(adapter, name, b"new")
        assert [letter.message.body for letter in adapter.dead_letters(name).list()] == [b"new"]


def test_letters_that_the_topic_s_retention_has_removed_are_neither_listed_nor_put_back(url, name, server):
    with closing(connect(url)) as adapter:
        adapter.ensure([Queue(name=name)])
        ids = bury(adapter, name, b"1", b"2", b"3")
        server.forget_before(f"{name}.dlq", 0, 2)
        with closing(connect(url)) as other:
            for letters in (adapter.dead_letters(name), other.dead_letters(name)):
                assert [letter.message.body for letter in letters.list()] == [b"3"]
                assert letters.put_back(ids[:2]) == []
            assert (adapter.depth(name)["failed"], other.depth(name)["failed"]) == (1, 1)
