"""A record is confirmed by its own delivery report, and by nothing else."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Sent

from postroom.adapters import Closed, Message, Verdict, connect
from postroom.adapters.kafka import config
from postroom.adapters.kafka.faults import outcome_of
from postroom.adapters.kafka.options import parse
from postroom.adapters.kafka.publisher import Publisher
from postroom.adapters.kafka.wire import Record, record_of
from support.kafka import Recorder, make_fatal, wait_until

DEAD = "kafka://127.0.0.1:1?message.timeout.ms=300&log_level=0"


def publisher(url: str, **options) -> Publisher:
    return Publisher(config.producer_config(parse(url)), **options)


def record(topic: str = "emails", *, key: bytes | None = None, value: bytes | None = b"{}") -> Record:
    return Record(topic, topic, key, value, [])


def verdicts(outcomes) -> list[Verdict]:
    return [outcome.verdict for outcome in outcomes]


class Obedient:
    """A client that answers each record with what the test says, when it is polled."""

    def __init__(self, answer) -> None:
        self._answer = answer
        self._reports = []
        self.inside = False

    def produce(self, topic, value, key, *, headers, on_delivery) -> None:  # noqa: ARG002 - as the client's
        assert not self.inside, "the producer was called from its own callback"
        self._reports.append((on_delivery, topic))

    def list_topics(self, topic: str, timeout: float) -> None:
        """There is a cluster."""

    def flush(self, _seconds: float) -> int:
        assert not self.inside, "the producer was polled from its own callback"
        self.inside = True
        for on_delivery, topic in self._reports:
            on_delivery(self._answer(topic), None)
        self._reports.clear()
        self.inside = False
        return 0


def test_s033_what_a_cluster_that_is_away_never_reported_is_not_confirmed():
    outcomes = publisher(DEAD).send([record()])
    assert verdicts(outcomes) == [Verdict.UNKNOWN]
    assert "timed out" in outcomes[0].reason


def test_s033_a_report_decides_and_not_the_return_of_produce(mock):
    outcomes = publisher(mock.url).send([record(), record(value=b"x" * 5_000_000), record()])
    assert verdicts(outcomes) == [Verdict.CONFIRMED, Verdict.REFUSED, Verdict.CONFIRMED]


def test_s034_closing_tells_how_many_records_are_still_out():
    recorder = Recorder(Counting)
    away = publisher("kafka://127.0.0.1:1?message.timeout.ms=60000&log_level=0", make=recorder)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(away.send, [record() for _ in range(20)])
        wait_until(lambda: bool(recorder.made) and recorder.made[0].produced == 20)
        assert away.close(0.1) == 20
        recorder.made[0].purge()
        assert verdicts(waiting.result()) == [Verdict.UNKNOWN] * 20


class Counting(Producer):
    """A real client that knows how many records it has taken."""

    produced = 0

    def produce(self, *args, **options):
        super().produce(*args, **options)
        self.produced += 1


def test_s037_a_hook_that_publishes_again_runs_after_the_reports_and_not_inside_one():
    sender = publisher(DEAD, make=lambda _: Obedient(lambda _: None))
    first = sender.send([record() for _ in range(5)])
    assert verdicts(first + sender.send([record()])) == [Verdict.CONFIRMED] * 6


def test_s038_a_forked_child_publishes_with_a_client_of_its_own(mock):
    sender = publisher(mock.url)
    assert verdicts(sender.send([record("forks")])) == [Verdict.CONFIRMED]
    child = os.fork()
    if not child:
        good = verdicts(sender.send([record("forks")])) == [Verdict.CONFIRMED]
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert verdicts(sender.send([record("forks")])) == [Verdict.CONFIRMED]


def test_s038_the_parent_s_client_is_not_used_in_another_process():
    pid = [1]
    recorder = Recorder(lambda _: Obedient(lambda _: None))
    sender = publisher(DEAD, make=recorder, pid=lambda: pid[0])
    sender.send([record()])
    pid[0] = 2
    sender.send([record()])
    sender.send([record()])
    assert len(recorder.made) == 2


def test_s039_a_record_that_timed_out_may_have_arrived():
    assert outcome_of(KafkaError(KafkaError._MSG_TIMED_OUT), "emails").verdict is Verdict.UNKNOWN  # noqa: SLF001


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, Verdict.REFUSED),
        (KafkaError.INVALID_RECORD, Verdict.REFUSED),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Verdict.REFUSED),
        (KafkaError._UNKNOWN_TOPIC, Verdict.BUSY),  # noqa: SLF001
        (KafkaError.UNKNOWN_TOPIC_OR_PART, Verdict.BUSY),
        (KafkaError.NOT_ENOUGH_REPLICAS, Verdict.BUSY),
        (KafkaError._INVALID_DIFFERENT_RECORD, Verdict.BUSY),  # noqa: SLF001
        (KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, Verdict.UNKNOWN),
        (KafkaError.REQUEST_TIMED_OUT, Verdict.UNKNOWN),
        (KafkaError._TRANSPORT, Verdict.UNKNOWN),  # noqa: SLF001
        (KafkaError._PURGE_INFLIGHT, Verdict.UNKNOWN),  # noqa: SLF001
        (KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, Verdict.UNKNOWN),
    ],
)
def test_an_error_is_permanent_for_now_or_leaves_it_unknown(code, verdict):
    assert outcome_of(KafkaError(code), "emails").verdict is verdict


def test_a_missing_topic_is_told_as_a_queue_nobody_declared():
    told = outcome_of(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), "emails").reason
    assert told == "queue 'emails' is not declared; run `postroom declare ...` or start its worker"


def test_s055_a_client_that_met_a_fatal_error_is_replaced_and_its_records_are_unknown():
    fatal = KafkaError(KafkaError._FATAL, "fenced", fatal=True)  # noqa: SLF001
    recorder = Recorder(lambda _: Obedient(lambda _: fatal if len(recorder.configs) == 1 else None))
    sender = publisher(DEAD, make=recorder)
    assert verdicts(sender.send([record(), record()])) == [Verdict.UNKNOWN] * 2
    assert verdicts(sender.send([record()])) == [Verdict.CONFIRMED]
    assert len(recorder.configs) == 2


def test_s055_the_same_with_a_real_client_whose_state_is_fatal(mock):
    # Nobody can fence the relay's producer, which has no transactional id (the URL may not give it one). That of a replay of dead letters
    # has one, and is fenced in test_kafka_letters.
    recorder = Recorder(Producer)
    sender = publisher(mock.url, make=recorder)
    assert verdicts(sender.send([record("fatal")])) == [Verdict.CONFIRMED]
    make_fatal(recorder.made[0])
    assert verdicts(sender.send([record("fatal"), record("fatal")])) == [Verdict.UNKNOWN] * 2
    assert verdicts(sender.send([record("fatal")])) == [Verdict.CONFIRMED]
    assert len(recorder.made) == 2


def test_a_client_that_refuses_a_record_at_once_stops_no_other():
    class Picky(Obedient):
        def produce(self, topic, value, key, *, headers, on_delivery) -> None:
            if value == b"large":
                raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
            super().produce(topic, value, key, headers=headers, on_delivery=on_delivery)

    outcomes = publisher(DEAD, make=lambda _: Picky(lambda _: None)).send([record(), record(value=b"large"), record()])
    assert verdicts(outcomes) == [Verdict.CONFIRMED, Verdict.REFUSED, Verdict.CONFIRMED]


def test_a_batch_that_is_too_large_as_a_whole_is_sent_again_record_by_record():
    class Crowded(Obedient):
        def flush(self, _seconds: float) -> int:
            reports, self._reports = self._reports, []
            for on_delivery, topic in reports:
                too_large = topic == "huge" or len(reports) > 1
                on_delivery(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE) if too_large else None, Sent())
            return 0

    outcomes = publisher(DEAD, make=lambda _: Crowded(None)).send([record(), record("huge"), record()])
    assert verdicts(outcomes) == [Verdict.CONFIRMED, Verdict.REFUSED, Verdict.CONFIRMED]


def test_a_full_queue_is_waited_for(mock):
    tiny = publisher(f"{mock.url}&queue.buffering.max.messages=10")
    assert verdicts(tiny.send([record("narrow") for _ in range(100)])) == [Verdict.CONFIRMED] * 100


def test_a_report_that_never_comes_ends_the_wait_at_its_bound():
    ticks = iter(range(1000))
    silent = publisher(DEAD, make=lambda _: Obedient(lambda _: None), clock=lambda: float(next(ticks)))
    silent.send([])
    mute = Obedient(lambda _: None)
    mute.flush = lambda _seconds: 1
    waiting = publisher(DEAD, make=lambda _: mute, clock=lambda: float(next(ticks)))
    assert waiting.send([record()])[0].reason == "no delivery report in time"


def test_a_closed_publisher_sends_nothing(mock):
    sender = publisher(mock.url)
    sender.close(1)
    with pytest.raises(Closed):
        sender.send([record()])


@pytest.mark.parametrize("headers", [{"list": [1]}, {"float": 1.5}, {"half a name \ud800": ""}, {b"name": ""}])
def test_s047_a_header_of_no_known_type_never_becomes_a_record(headers):
    with pytest.raises((KeyError, TypeError, ValueError)):
        record_of(Message(id="1", queue="emails", body=b"", headers=headers), "emails", None)


def test_s047_text_that_can_not_travel_is_refused_and_stops_no_other(mock):
    broken = Record("emails", "emails", None, b"{}", [("half", "\ud800")])
    assert verdicts(publisher(mock.url).send([record(), broken, record()])) == [Verdict.CONFIRMED, Verdict.REFUSED, Verdict.CONFIRMED]


def test_a_cluster_that_is_away_is_an_outcome_and_no_error(monkeypatch):
    monkeypatch.setattr("postroom.adapters.kafka.reader.PATIENCE", 0.5)
    adapter = connect("kafka://127.0.0.1:1")
    (outcome,) = adapter.publish([Message(id="1", queue="emails", body=b"{}")])
    assert outcome.verdict is Verdict.UNKNOWN
    adapter.close()
