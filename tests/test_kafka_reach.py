"""The first contact with Kafka: who names a wrong place or password is told why within seconds, and not by librdkafka's log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from postroom.adapters import AccessDenied, Queue, Unavailable, connect
from postroom.adapters.kafka.reach import DOWN, PATIENCE, UNVERIFIED, Reach


def says(name: str, words: str) -> KafkaError:
    """librdkafka's own errors have names with an underscore."""
    return KafkaError(getattr(KafkaError, name), words)


REFUSED = says("_TRANSPORT", "host:9092/bootstrap: Connect to ipv4#10.0.0.1:9092 failed: Connection refused (after 0ms in state CONNECT)")
DENIED = says("_AUTHENTICATION", "sasl_ssl://host:9092/bootstrap: SASL authentication error: Invalid username (after 1ms in state AUTH_REQ)")
STRANGE = says("_BAD_MSG", "host:9092/bootstrap: Receive failed: Invalid response size 1213486160")
STRANGER = says("_SSL", "ssl://host:9092/bootstrap: error:0A000086:SSL routines::certificate verify failed (after 2ms in state SSL_HANDSHAKE)")
ALL_DOWN = says("_ALL_BROKERS_DOWN", "1/1 brokers are down")


class Cluster:
    """An admin client whose servers say these things by themselves; it gives `answer`, and from the `answers_at`th question on a good one."""

    def __init__(self, *said: KafkaError, answers_at: int | None = None, answer: str = "_TRANSPORT") -> None:
        self.said, self.answers_at, self.asked, self.now = said, answers_at, 0, 0.0
        self.answer = says(answer, "Failed to get metadata: Local: Broker transport failure")

    def __call__(self, settings: dict) -> Cluster:
        self.tell = settings["error_cb"]
        return self

    def clock(self) -> float:
        return self.now

    def list_topics(self, timeout: float) -> None:
        self.asked += 1
        self.now += timeout
        if self.answers_at is None or self.asked < self.answers_at:
            raise KafkaException(self.answer)

    def poll(self, _: float) -> None:
        for error in self.said:
            self.tell(error)


def reach(cluster: Cluster) -> Reach:
    return Reach({}, "host:9092", make=cluster, clock=cluster.clock)


@pytest.mark.parametrize(
    ("said", "kind", "told", "waited"),
    [
        ((REFUSED, ALL_DOWN), Unavailable, "can't reach Kafka at host:9092: Connect to ipv4#10.0.0.1:9092 failed: Connection refused", DOWN),
        ((DENIED, ALL_DOWN), AccessDenied, "Kafka at host:9092 refuses: SASL authentication error: Invalid username", 0.5),
        (
            (STRANGE, ALL_DOWN),
            Unavailable,
            "can't reach Kafka at host:9092: what answers there is no Kafka, or wants TLS (security.protocol=SSL)",
            DOWN,
        ),
        (
            (STRANGER, ALL_DOWN),
            Unavailable,
            f"can't reach Kafka at host:9092: error:0A000086:SSL routines::certificate verify failed: {UNVERIFIED}",
            DOWN,
        ),
        ((), Unavailable, "can't reach Kafka at host:9092: Failed to get metadata: Local: Broker transport failure", PATIENCE),
    ],
)
def test_the_reason_is_told_and_the_wait_is_short(said: tuple[KafkaError, ...], kind: type[Exception], told: str, waited: float):
    cluster = Cluster(*said)
    with pytest.raises(kind) as failure:
        reach(cluster).require()
    assert str(failure.value) == told
    assert cluster.now == waited


@pytest.mark.parametrize("answer", ["_TRANSPORT", "_TIMED_OUT"])
def test_servers_that_hang_up_without_a_word_want_another_protocol(answer: str):
    with pytest.raises(Unavailable, match="does it want TLS or a login"):
        reach(Cluster(ALL_DOWN, answer=answer)).require()


def test_a_server_that_comes_while_others_are_down_is_waited_for():
    cluster = Cluster(REFUSED, ALL_DOWN, answers_at=3)
    reach(cluster).require()
    assert cluster.asked == 3


def test_a_cluster_that_has_answered_is_not_asked_again():
    cluster = Cluster(answers_at=1)
    contact = reach(cluster)
    contact.require()
    contact.require()
    assert cluster.asked == 1


@pytest.fixture
def library_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG):
        yield caplog


def test_librdkafka_s_own_lines_are_not_in_the_log_by_default(library_log: pytest.LogCaptureFixture):
    adapter = connect("kafka://127.0.0.1:1")
    with pytest.raises(Unavailable, match="Connection refused"):
        adapter.ensure([Queue(name="emails")])
    adapter.close()
    assert [record.name for record in library_log.records if "rdkafka" in record.getMessage()] == []
