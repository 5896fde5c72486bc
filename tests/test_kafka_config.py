"""What the URL says, what the clients really get, and what is refused at start."""

from __future__ import annotations

import logging
import os
import re
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from postroom.adapters import ConfigurationError, Unavailable, connect
from postroom.adapters.kafka import config
from postroom.adapters.kafka.options import Options, parse
from support.kafka import Mock, Opened, Recorder, wait_until

SECRET = "p4ssw0rd"  # noqa: S105 - the one that must not be shown

NOBODY = "kafka://127.0.0.1:1"


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("kafka://host:9092", Options(servers="host:9092")),
        ("kafka://one:9092,two:9093/", Options(servers="one:9092,two:9093")),
        ("kafka://host:9092?mode=share&partitions=6&replication=3", Options(servers="host:9092", mode="share", partitions=6, replication=3)),
        ("kafka://host:9092?topic.retention.ms=1000", Options(servers="host:9092", topic={"retention.ms": "1000"})),
        ("kafka://host:9092?dlq.retention.ms=1000", Options(servers="host:9092", dlq={"retention.ms": "1000"})),
        ("kafka://host:9092?delivery.timeout.ms=7", Options(servers="host:9092", client={"message.timeout.ms": "7"})),
        ("kafka://host:9092?linger.ms=7", Options(servers="host:9092", client={"linger.ms": "7"})),
        ("kafka://host:9092?skip.backlog=yes", Options(servers="host:9092", skip_backlog=True)),
        ("kafka://host:9092?partitions=6&partitions.force=yes", Options(servers="host:9092", partitions=6, force=True)),
    ],
)
def test_a_url_says_where_and_how(url, options):
    assert parse(url) == options


def test_a_user_and_a_password_mean_sasl_over_tls_unless_the_options_say_otherwise():
    given = parse(f"kafka://us%40er:{SECRET}@host:9092?sasl.mechanism=SCRAM-SHA-512&ssl.ca.location=/ca.pem").client
    assert given == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "us@er",
        "sasl.password": SECRET,
        "ssl.ca.location": "/ca.pem",
    }


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("kafka://", "write kafka://host:9092"),
        ("kafka://host:9092/topic", "write kafka://host:9092"),
        ("kafka://host:9092?mode=shared", "mode='shared': it is one of classic, share"),
        ("kafka://host:9092?partitions=0", "partitions='0': it is a number from 1"),
        ("kafka://host:9092?partitions=99999999999", "it is a number from 1 to 100,000"),
        ("kafka://host:9092?partitions=six", "partitions='six': it is a number from 1"),
        ("kafka://host:9092?skip.backlog=maybe", "skip.backlog='maybe'"),
        ("kafka://host:9092?linger.ms", "write options as name=value"),
        ("kafka://host:9092?acks=all&acks=1", "an option is given twice"),
        ("kafka://host:9092?delivery.timeout.ms=1&message.timeout.ms=2", "message.timeout.ms: it is given twice"),
        ("kafka://user:secret@host:9092?sasl.username=other", "sasl.username: it is given twice"),
    ],
)
def test_a_url_that_says_nothing_sensible_is_refused(url, told):
    with pytest.raises(ConfigurationError, match=told):
        connect(url)


EFFECTIVE = [
    ("enable.auto.commit", False),
    ("enable.auto.offset.store", False),
    ("auto.offset.reset", "error"),
    ("isolation.level", "read_committed"),
    ("enable.partition.eof", True),
    ("partition.assignment.strategy", "cooperative-sticky"),
    ("max.poll.interval.ms", "9000"),
]


@pytest.mark.parametrize(("option", "value"), EFFECTIVE)
def test_s032_every_option_reaches_the_consumer_s_client(option, value):
    recorder = Recorder(Consumer)
    made = Opened(f"{NOBODY}?max.poll.interval.ms=9000&session.timeout.ms=6000&linger.ms=3", "emails", make=recorder)
    made.consumer.close()
    assert recorder.configs[0][option] == value
    assert "linger.ms" not in recorder.configs[0]


@pytest.mark.parametrize(
    ("option", "value"),
    [("enable.idempotence", True), ("acks", "all"), ("partitioner", "murmur2_random"), ("linger.ms", "3"), ("bootstrap.servers", "host:9092")],
)
def test_s032_every_option_reaches_the_producer_s_client(option, value):
    final = config.producer_config(parse("kafka://host:9092?linger.ms=3&session.timeout.ms=6000"))
    assert final[option] == value
    assert "session.timeout.ms" not in final


def test_a_share_group_s_client_gets_what_the_url_says_and_nothing_that_is_for_the_other_kind():
    final = config.share_config(parse("kafka://host:9092?mode=share&fetch.wait.max.ms=50&client.rack=north&linger.ms=3"), "g", 5)
    assert final["share.acknowledgement.mode"] == "explicit"
    assert (final["max.poll.records"], final["client.rack"], final["fetch.wait.max.ms"]) == (5, "north", "50")
    assert not {"enable.auto.commit", "linger.ms", "partition.assignment.strategy"} & final.keys()


def test_the_new_protocol_of_groups_takes_no_strategy():
    final = config.consumer_config(parse("kafka://host:9092?group.protocol=consumer"), "g")
    assert final["group.protocol"] == "consumer"
    assert "partition.assignment.strategy" not in final
    connect("kafka://host:9092?group.protocol=consumer").close()


REFUSED = {
    "s031_enable.auto.commit=true": "handed over",
    "s031_enable.auto.commit=1": "handed over",
    "s056_enable.idempotence=0": "order of a key",
    "session.timeout.ms=6000&heartbeat.interval.ms=6000": "less than session.timeout.ms=6000",
    "s031_enable.auto.offset.store=TRUE": "handed over",
    "s050_auto.offset.reset=latest": "say skip.backlog=yes",
    "s056_enable.idempotence=false": "order of a key",
    "s056_acks=1": "all replicas",
    "s056_request.required.acks=0": "all replicas",
    "s056_max.in.flight=6": "max.in.flight",
    "isolation.level=read_uncommitted": "broken off",
    "partition.assignment.strategy=range": "each rebalance",
    "s050_auto.offset.reset=earliest": "an offset that is gone would be a jump",
    "s050_auto.offset.reset=latest&skip.backlog=yes": "an offset that is gone would be a jump",
    "s031_auto.commit.interval.ms=100": "by hand",
    "s056_enable.idempotence=perhaps": "order of a key",
    "enable.partition.eof=f": "silence",
    "max.poll.records=5": "the prefetch",
    "default.topic.config=acks": "a way round",
    "error_cb=print": "it is ours",
    "logger=mine": "a text is no logger",
    "group.id=a%0Ab": "a group is named",
    "share.acknowledgement.mode=explicit": "it is for mode=share",
    "mode=share&share.acknowledgement.mode=implicit": "next one",
    "mode=share&session.timeout.ms=6000": "`session.timeout.ms` is not supported",
    "mode=share&heartbeat.interval.ms=600": "`heartbeat.interval.ms` is not supported",
    "mode=share&group.protocol=consumer": "`group.protocol` is not applicable for share consumer",
    "mode=share&partition.assignment.strategy=cooperative-sticky": "`partition.assignment.strategy` is not applicable for share consumer",
    "mode=share&queued.min.messages=5": "`queued.min.messages` is not applicable for share consumer",
    "mode=share&max.poll.records=5": "the prefetch",
    "mode=share&enable.auto.offset.store=false": "no offsets",
    "mode=share&statistics.interval.ms=0": "that a member has joined",
    "mode=share&statistics.interval.ms=60000": "that a member has joined",
    "s050_mode=share&skip.backlog=yes": "use mode=classic",
    "message.timeout.ms=0": "no bound",
    "group.id=mine": "a group is named",
    "transactional.id=mine": "its own",
    "bootstrap.servers=elsewhere:1": "before the question mark",
    "mode=share&group.instance.id=mail": "not applicable for share consumer",
    "s032_no.such.option=1": "No such configuration property",
    "s032_linger.ms=soon": "linger.ms",
}


@pytest.mark.parametrize("option", REFUSED)
def test_an_option_that_contradicts_or_is_unknown_is_refused_at_start_with_the_final_configuration(option):
    with pytest.raises(ConfigurationError) as refused:
        connect(f"kafka://user:{SECRET}@host:9092?ssl.key.password={SECRET}&{re.sub('^s[0-9]{3}_', '', option)}")
    told = str(refused.value)
    assert REFUSED[option] in told
    assert "acks=" in told
    assert "sasl.password=***" in told
    assert SECRET not in told


@pytest.mark.parametrize(
    "option", ["sasl.pasword", "ssl.key.passwort", "sasl.oauthbearer.assertion.private.key.passphrase", "sasl.kerberos.kinit.cmd", "SASL.pass"]
)
def test_what_may_be_a_secret_is_not_shown_whatever_its_option_is_called(option):
    with pytest.raises(ConfigurationError) as refused:
        connect(f"kafka://host:9092?{option}={SECRET}&no.such.option=1&sasl.mechanism=PLAIN&ssl.ca.location=/ca.pem")
    told = str(refused.value)
    assert SECRET not in told
    assert f"{option}=***" in told
    assert "sasl.mechanism=PLAIN" in told
    assert told.startswith("ssl.ca.location=/ca.pem: there is no such file")


@pytest.mark.parametrize(
    "option", ["sasl.mechanism", "sasl.mechanisms", "security.protocol", "sasl.oauthbearer.method", "sasl.oauthbearer.grant.type"]
)
def test_a_secret_in_the_place_of_a_word_is_not_shown(option):
    with pytest.raises(ConfigurationError, match=re.escape(option.removesuffix("s"))) as refused:
        connect(f"kafka://user@host:9092?sasl.password=another&{option}={SECRET}")
    assert SECRET not in str(refused.value)
    assert "***" in str(refused.value)


def test_options_beside_the_url_are_as_if_it_said_them_and_may_be_what_no_url_can_say():
    def token(_: str) -> tuple[str, float]:
        raise AssertionError

    said = {"linger.ms": 3, "partitions": 6, "skip.backlog": True, "topic.retention.ms": "1000", "oauth_cb": token}
    options = parse("kafka://host:9092?client.rack=north", said)
    assert (options.partitions, options.skip_backlog, options.topic) == (6, True, {"retention.ms": "1000"})
    for made in (config.producer_config(options), config.consumer_config(options, "g"), config.admin_config(options), config.reader_config(options)):
        assert made["oauth_cb"] is token
    assert config.producer_config(options)["linger.ms"] == "3"
    assert config.share_config(parse("kafka://host:9092?mode=share", {"oauth_cb": token}), "g", 1)["oauth_cb"] is token


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"linger.ms": 3}, "linger.ms: it is given twice"),
        ({"sasl.password": "another"}, "sasl.password: it is given twice"),
        ({"enable.auto.commit": True}, "enable.auto.commit=true: refused"),
        ({"stats_cb": print, "mode": "share"}, "stats_cb=.*: refused"),
        ({"on_commit": print}, "on_commit=.*: refused"),
        ({"oauth_cb": 7}, "callable"),
        ({"mode": object()}, "No such configuration property"),
        ({"no.such.option": print}, "No such configuration property"),
        ({"client.id": None}, "client.id: None is no value"),
    ],
)
def test_options_beside_the_url_are_looked_at_as_closely(options, told):
    with pytest.raises(ConfigurationError, match=told) as refused:
        connect(f"kafka://user:{SECRET}@host:9092?linger.ms=7", options)
    assert SECRET not in str(refused.value)


def test_a_logger_of_one_s_own_gets_what_the_client_library_says(caplog):
    caplog.set_level(0, logger="mine")
    with closing(connect(NOBODY, {"logger": logging.getLogger("mine")})) as adapter, pytest.raises(Unavailable):
        adapter.carriers()
    assert "refused" in caplog.text


def test_the_opposite_of_a_default_may_be_asked_for():
    final = parse("kafka://host:9092?acks=-1&enable.auto.commit=false&auto.offset.reset=error&partitioner=consistent_random")
    config.check(final)
    assert config.producer_config(final)["partitioner"] == "consistent_random"
    assert config.producer_config(final)["acks"] == "all"


@pytest.mark.parametrize(("name", "single"), [("mail", "group.instance.id=mail"), ("mail-{process}", "")])
def test_a_name_of_a_member_is_for_one_process_unless_it_has_the_number_of_the_process_in_it(name, single):
    assert connect(f"{NOBODY}?group.instance.id={name}").capabilities.single == single


def test_a_closed_adapter_leaves_no_thread_and_no_connection_of_the_client_library():
    mock = Mock()
    mock.produce("emails", b"{}")
    before = _threads_and_connections()
    adapter = connect(mock.url)
    assert adapter.carriers() == []
    made = _threads_and_connections() - before
    assert len(made) > 5
    adapter.close()
    adapter.close()
    wait_until(lambda: not made & _threads_and_connections())


def _threads_and_connections() -> set[str]:
    files = {os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()}
    return {path.name for path in Path("/proc/self/task").iterdir()} | {file for file in files if "socket:" in file}


def test_connecting_asks_no_server():
    adapter = connect(f"{NOBODY}?mode=share")
    assert not adapter.capabilities.ordered
    adapter.close()
    adapter.close()
