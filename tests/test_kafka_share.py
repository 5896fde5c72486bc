"""A share group goes round by round, and acknowledges every record of a round before it asks for the next."""

from __future__ import annotations

import base64
import re
import threading
from contextlib import suppress

import pytest
from confluent_kafka import AcknowledgeType, KafkaError, KafkaException, Message
from confluent_kafka.admin import ConfigEntry

from postroom.adapters import AccessDenied, LeaseLost, Outcome, Unavailable, Verdict
from postroom.adapters.kafka.consumer import KafkaConsumer
from postroom.adapters.kafka.desk import Desk
from postroom.adapters.kafka.entry import Source
from postroom.adapters.kafka.share import ShareFeed
from postroom.adapters.kafka.share_group import Limits, _changes
from postroom.adapters.kafka.share_state import Progress, as_java_writes_it, home_of, progress_of
from postroom.adapters.weights import Turns
from support.kafka import PATIENCE, wait_until

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
CONFIRMED = Outcome(Verdict.CONFIRMED)


def record(offset: int, value: bytes | None = b"{}", *, deliveries: int = 1, group: str | None = None) -> Message:
    headers = [("postroom-only-group", group.encode())] if group else []
    return Message(topic="emails", partition=0, offset=offset, value=value, headers=headers, delivery_count=deliveries)


GONE = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)


class Scripted:
    """A share consumer whose polls are told beforehand; it insists, as the real one does, that all of a poll is acknowledged before the next."""

    def __init__(self, *rounds) -> None:
        self._rounds = list(rounds)
        self._open: set[int] = set()
        self.ends: dict[int, AcknowledgeType] = {}
        self.idle = threading.Event()

    def subscribe(self, topics) -> None:
        assert topics == ["emails"]

    def set_acknowledgement_commit_callback(self, callback) -> None:
        self.told = callback

    def poll(self, _seconds: float):
        assert not self._open, "records of the last poll were not acknowledged"
        if not self._rounds:
            self.idle.set()
            threading.Event().wait(0.01)
            return []
        records = self._rounds.pop(0)
        if isinstance(records, Exception):
            raise records
        self._open = {each.offset() for each in records if each.offset() is not None and each.offset() >= 0}
        return records

    def acknowledge(self, each, how) -> None:
        self._open.remove(each.offset())
        self.ends[each.offset()] = how

    def commit_sync(self, _seconds: float):
        return {}

    def close(self) -> None:
        assert not self._open


class Copier:
    """Publishes as it is told to."""

    def __init__(self, outcome: Outcome = CONFIRMED) -> None:
        self.sent: list = []
        self._outcome = outcome

    def send(self, records):
        self.sent += records
        return [self._outcome] * len(records)


class Stand:
    """A consumer on a scripted client, with a clock that the test moves."""

    def __init__(
        self, client: Scripted, *, copier: Copier | None = None, prefetch: int = 10, clients=None, only: str | None = None, starts: bool = True
    ):
        self.now = 0.0
        self.missing: list[str] = []
        source = Source(carrier="emails", topic="emails", group="g", only=only, queue="emails", ordered=False, dead_letter="emails.dlq")
        self.desk = Desk(["emails"], Turns({"emails": 1}), prefetch)
        made = iter(clients or [client])
        self.feed = ShareFeed(
            {"group.id": "g", "bootstrap.servers": "host"},
            {"emails": source},
            self.desk,
            copier or Copier(),
            limits=Limits(lock=30.0, deliveries=10),
            identify=lambda topics: {topic: GONE if topic in self.missing else "its id" for topic in topics},
            make=lambda _: next(made),
            clock=lambda: self.now,
        )
        self.consumer = KafkaConsumer(self.desk, [self.feed.keeper], lambda _entry, _reason: None)
        if starts:
            self.feed.keeper.start()

    def expire(self, seconds: float = 29.0) -> None:
        with self.desk.changed:
            self.now += seconds
            self.desk.changed.notify_all()


@pytest.fixture
def stand():
    made = []

    def make(*args, **options) -> Stand:
        made.append(Stand(*args, **options))
        return made[-1]

    yield make
    for each in made:
        each.consumer.close()


def test_each_settlement_becomes_its_acknowledgement(stand):
    client = Scripted([record(0), record(1), record(2)])
    consumer = stand(client).consumer
    zero, one, two = consumer.receive(3, PATIENCE)
    consumer.ack([two])
    consumer.dead_letter(one, "no such address")
    consumer.ack([zero])
    assert client.idle.wait(PATIENCE)
    assert client.ends == {0: ACCEPT, 1: REJECT, 2: ACCEPT}


def test_the_next_round_waits_for_the_last_settlement_of_this_one(stand):
    client = Scripted([record(0), record(1)], [record(2)])
    consumer = stand(client).consumer
    zero, one = consumer.receive(3, PATIENCE)
    consumer.ack([zero])
    assert not consumer.receive(1, 0.05)
    consumer.ack([one])
    (two,) = consumer.receive(1, PATIENCE)
    consumer.ack([two])


def test_what_is_released_comes_again_here_and_uses_up_no_delivery(stand):
    client = Scripted([record(0)])
    consumer = stand(client).consumer
    (first,) = consumer.receive(1, PATIENCE)
    consumer.release([first])
    (second,) = consumer.receive(1, PATIENCE)
    assert not client.ends
    consumer.ack([second])


def test_a_round_ends_before_its_locks_run_out_and_its_holder_has_lost_what_is_open(stand):
    client = Scripted([record(0), record(1)])
    made = stand(client)
    slow, done = made.consumer.receive(2, PATIENCE)
    made.consumer.ack([done])
    made.expire()
    assert client.idle.wait(PATIENCE)
    with pytest.raises(LeaseLost):
        made.consumer.ack([slow])
    assert client.ends == {0: RELEASE, 1: ACCEPT}


def test_s057_a_topic_that_is_gone_is_told_for_as_long_as_it_lasts_though_the_client_says_nothing(stand):
    made = stand(Scripted())
    assert not made.consumer.receive(1, 0.05)
    made.missing = ["emails"]
    made.expire()
    wait_until(lambda: _is_told(made.consumer, "topic 'emails': .*Unknown topic"))
    assert all(_is_told(made.consumer, "topic 'emails'") for _ in range(3))
    made.missing = []
    made.expire()
    wait_until(lambda: not _is_told(made.consumer, "emails"))


def test_s057_a_topic_that_is_gone_is_told_though_every_poll_brings_something(stand):
    made = stand(Scripted(*([record(number)] for number in range(20))))
    made.missing = ["emails"]
    for _ in range(10):
        with suppress(Unavailable):  # it is told
            made.consumer.ack(made.consumer.receive(1, PATIENCE))
        made.expire(1.0)
    assert [trouble.partition(":")[0] for trouble in made.consumer.troubles] == ["topic 'emails'"]


def _is_told(consumer: KafkaConsumer, words: str) -> bool:
    try:
        consumer.receive(1, 0.05)
    except Unavailable as told:
        return re.search(words, str(told)) is not None
    return False


def test_closing_releases_what_is_open_and_accepts_what_is_done(stand):
    client = Scripted([record(0), record(1), record(2)])
    made = stand(client, prefetch=2)
    zero, _ = made.consumer.receive(3, PATIENCE)
    made.consumer.ack([zero])
    made.consumer.close()
    assert client.ends == {0: ACCEPT, 1: RELEASE, 2: RELEASE}


def test_s042_a_tombstone_and_what_is_for_another_group_are_accepted_unseen(stand):
    client = Scripted([record(0, None), record(1, group="stock"), record(2, b"")])
    made = stand(client)
    (empty,) = made.consumer.receive(3, PATIENCE)
    assert empty.message.body == b""
    made.consumer.ack([empty])
    assert client.idle.wait(PATIENCE)
    assert (client.ends, made.consumer.tombstones) == ({0: ACCEPT, 1: ACCEPT, 2: ACCEPT}, 1)


def test_the_broker_s_count_is_a_hint(stand):
    made = stand(Scripted([record(0, deliveries=3)]))
    (delivery,) = made.consumer.receive(1, PATIENCE)
    assert delivery.attempts == 2


def test_a_record_that_the_broker_would_soon_drop_is_sent_afresh(stand):
    client, copier = Scripted([record(0, b"worn", deliveries=9)]), Copier()
    stand(client, copier=copier)
    assert client.idle.wait(PATIENCE)
    assert [(sent.topic, sent.value) for sent in copier.sent] == [("emails", b"worn")]
    assert client.ends == {0: ACCEPT}


def test_the_copy_of_a_worn_record_is_for_the_group_that_wore_it_out_alone(stand):
    client, copier = Scripted([record(0, b"worn", deliveries=9)]), Copier()
    stand(client, copier=copier, only="mail")
    assert client.idle.wait(PATIENCE)
    assert [value for sent in copier.sent for name, value in sent.headers if name == "postroom-only-group"] == ["mail"]


@pytest.mark.parametrize(
    ("before", "is_default", "lease", "after"),
    [("30000", True, 20.0, "20000"), ("30000", False, 20.0, "30000"), ("30000", False, 45.0, "45000")],
)
def test_a_group_begins_with_the_oldest_record_and_its_lock_is_only_ever_lengthened(before, is_default, lease, after):
    found = {
        "share.record.lock.duration.ms": ConfigEntry("share.record.lock.duration.ms", before, is_default=is_default),
        "share.auto.offset.reset": ConfigEntry("share.auto.offset.reset", "latest", is_default=True),
        "share.delivery.count.limit": ConfigEntry("share.delivery.count.limit", "5", is_default=True),
    }
    changes = {entry.name: entry.value for entry in _changes(found, lease)}
    assert {name: changes.get(name, before) for name in found} == {
        "share.record.lock.duration.ms": after,
        "share.auto.offset.reset": "earliest",
        "share.delivery.count.limit": "10",
    }


def test_a_worn_record_whose_copy_is_not_confirmed_is_run_as_it_is(stand):
    client = Scripted([record(0, deliveries=9)])
    made = stand(client, copier=Copier(Outcome(Verdict.UNKNOWN)))
    (delivery,) = made.consumer.receive(1, PATIENCE)
    made.consumer.ack([delivery])
    assert client.idle.wait(PATIENCE)
    assert client.ends == {0: ACCEPT}


def test_s030_an_error_event_is_no_job(stand):
    client = Scripted([Message(topic="emails", partition=0, offset=0, value=b"human text", error=KafkaError(KafkaError._BAD_MSG))])  # noqa: SLF001
    made = stand(client)
    assert client.idle.wait(PATIENCE)
    assert not made.consumer.receive(1, 0)


def test_s030_news_that_lies_nowhere_is_told_and_costs_no_other_its_acknowledgement(stand):
    lost, denied = KafkaError(KafkaError._TRANSPORT), KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)  # noqa: SLF001
    news = [Message(error=lost), Message(topic="emails", partition=0, offset=-1001, error=denied)]
    client = Scripted([*news, record(0)])
    made = stand(client)
    with pytest.raises(AccessDenied):
        made.consumer.receive(0, PATIENCE)
    (job,) = made.consumer.receive(1, PATIENCE)
    made.consumer.ack([job])
    assert client.idle.wait(PATIENCE)
    assert client.ends == {0: ACCEPT}


def test_a_lock_runs_from_before_its_record_was_there(stand):
    class Slow(Scripted):
        def poll(self, seconds: float):
            records = super().poll(seconds)
            if records:
                made.now += 10.0
            return records

    made = stand(None, clients=[client := Slow([record(0)])], starts=False)
    made.feed.keeper.start()
    (slow,) = made.consumer.receive(1, PATIENCE)
    made.expire(18.5)
    assert client.idle.wait(PATIENCE)
    with pytest.raises(LeaseLost):
        made.consumer.ack([slow])


def test_s057_a_denied_group_is_told_and_a_new_client_is_tried(stand):
    denied = KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "no access"))
    second = Scripted()
    made = stand(None, clients=[Scripted(denied), second])
    with pytest.raises(Unavailable, match="group 'g': no access"):
        made.consumer.receive(1, PATIENCE)
    wait_until(lambda: not made.desk.troubles)
    assert second.idle.wait(PATIENCE)
    assert not made.consumer.receive(1, 0)


SNAPSHOT = bytes.fromhex("0000000000000000000200000000ffffffffffffffff000001a228b3f3be000001a228b3f3be0100")
FIRST = bytes.fromhex(
    "000000000000000000000000000000000000030000000000000000000000000000000004000100000000000000000100000000000000020200010001000400000003"
)
SECOND = bytes.fromhex(
    "000000000000000000000000000000000003030000000000000003000000000000000300000100000000000000000400000000000000040400010001000400000001"
)


def test_the_brokers_own_records_tell_how_far_a_group_is():
    begun = progress_of(0, SNAPSHOT, Progress(0, 0))
    further = progress_of(1, FIRST, begun)
    assert (begun, further, progress_of(1, SECOND, further)) == (Progress(0, 0), Progress(0, 3), Progress(3, 1))


def test_a_record_of_a_format_that_is_not_known_changes_nothing():
    assert progress_of(1, b"\x00\x07" + FIRST[2:], Progress(5, 1)) == Progress(5, 1)


def test_a_topic_s_id_is_written_as_brokers_do_which_its_place_and_its_key_are_made_of():
    assert as_java_writes_it("A3VxDOJjTYyRTIUSu1+S/w") == "A3VxDOJjTYyRTIUSu1-S_w"
    assert len(base64.urlsafe_b64decode(as_java_writes_it("A3VxDOJjTYyRTIUSu1+S/w") + "==")) == 16


def test_where_a_group_s_progress_lies_is_told_by_java_s_hash():
    assert home_of("g", "CXYDM0aKR9SwjwgFPNJ3nw", 0, 50) == 17
