"""Who may do what: passwords, certificates and rights, on a real cluster that asks for them."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from postroom.adapters import AccessDenied, Consumer, Delivery, Message, Queue, Unavailable, Verdict, connect
from support.command import COMMAND, environment, postroom
from support.kafka import bodies, wait_until
from support.kafka_secure import PASSWORD, Secured, secured, token_of

SCRAM = {"sasl.mechanism": "SCRAM-SHA-512"}
WAYS: dict[str, Callable[[Secured], str]] = {
    "PLAIN": lambda server: server.url("shop"),
    "SCRAM": lambda server: server.url("clerk", **SCRAM),
    "PLAIN through TLS": lambda server: server.url_with_tls("shop"),
    "SCRAM through TLS": lambda server: server.url_with_tls("clerk", **SCRAM),
    "a certificate": lambda server: server.url_with_certificate(),
}
both = pytest.mark.parametrize("mode", ["classic", "share"])


@pytest.fixture(scope="module")
def server(docker_engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """`shop`, `clerk` and the client with a certificate may use the queues `emails-...`, and groups and transactions of theirs; `stranger` none."""
    with secured(tmp_path_factory.mktemp("certificates")) as made:
        for user in ("shop", "clerk", "CN=client"):
            made.allow(user, topics="emails-", groups="emails-", transactions="postroom-letters-")
        for user in ("shop", "clerk", "CN=client", "stranger"):
            made.allow(user, topics="postroom.queues")
        yield made


@pytest.fixture
def name(server: Secured) -> str:
    """A queue that is declared."""
    made = f"emails-{uuid.uuid4().hex[:8]}"
    with closing(connect(server.url("root", partitions=1))) as adapter:
        adapter.ensure([Queue(name=made)])
    return made


def message(queue: str, number: int = 0) -> Message:
    return Message(id=f"{queue}-{number}", queue=queue, body=b"%d" % number)


def received(consumer: Consumer) -> list[Delivery]:
    found: list[Delivery] = []
    wait_until(lambda: bool(found.extend(consumer.receive(1, 0.2)) or found))
    return found


@pytest.mark.parametrize("way", WAYS)
def test_each_way_in_publishes_consumes_and_puts_dead_letters_back(server, name, way):
    with closing(connect(WAYS[way](server))) as adapter:
        adapter.ensure([Queue(name=name)])
        assert adapter.publish([message(name)])[0].verdict is Verdict.CONFIRMED
        consumer = adapter.consume({name: 1}, group=name, prefetch=5, name="w")
        consumer.dead_letter(received(consumer)[0], "no such address")
        letters = adapter.dead_letters(name)
        assert letters.put_back([letter.id for letter in letters.list()])
        (again,) = received(consumer)
        assert again.message.body == b"0"
        consumer.ack([again])
        wait_until(lambda: adapter.depth(name) == {"pending": 0, "running": 0, "failed": 0})


@both
def test_a_token_that_a_callback_beside_the_url_gives_is_a_way_in_for_every_client(server, name, mode):
    asked = []

    def give(config: str) -> tuple[str, float]:
        asked.append(config)
        return token_of("shop")

    with closing(connect(server.url_with_token(), {"oauth_cb": give, "mode": mode})) as adapter:
        assert adapter.publish([message(name)])[0].verdict is Verdict.CONFIRMED
        consumer = adapter.consume({name: 1}, group=name, prefetch=5, name="w")
        consumer.dead_letter(received(consumer)[0], "no such address")
        assert len(adapter.dead_letters(name).list()) == 1
    assert len(asked) >= 4  # producer, admin, reader, consumer


TOPIC, GROUP, TRANSACTION = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
READ, WRITE, CREATE, ALTER = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.ALTER
SEE, CHANGE = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS


def grant(server: Secured, name: str) -> None:
    """The rights that adapters/kafka/README.md names, and no others; {} is the queue."""
    for user, what, where, operations in (
        ("relay", TOPIC, "postroom.queues", (READ,)),
        ("relay", TOPIC, "{}", (WRITE,)),
        ("worker", TOPIC, "postroom.queues", (READ, WRITE)),
        ("worker", TOPIC, "{}", (READ,)),
        ("worker", TOPIC, "{}.dlq", (WRITE,)),
        ("worker", GROUP, "{}", (READ,)),
        ("sharer", TOPIC, "postroom.queues", (READ, WRITE)),
        ("sharer", TOPIC, "{}", (READ, WRITE)),
        ("sharer", TOPIC, "{}.dlq", (WRITE,)),
        ("sharer", GROUP, "{}.share", (READ, SEE, CHANGE)),
        ("declarer", TOPIC, "postroom.queues", (CREATE, READ, WRITE, SEE)),
        ("declarer", TOPIC, "{}", (CREATE, ALTER, SEE)),
        ("declarer", TOPIC, "{}.dlq", (CREATE, AclOperation.DESCRIBE, SEE)),
        ("operator", TOPIC, "postroom.queues", (READ,)),
        ("operator", TOPIC, "{}", (WRITE,)),
        ("operator", TOPIC, "__share_group_state", (READ,)),
        ("operator", TOPIC, "{}.dlq", (READ, WRITE)),
        ("operator", GROUP, "{}", (AclOperation.DESCRIBE,)),
        ("operator", TRANSACTION, "postroom-letters-*", (WRITE,)),
    ):
        server.grant(user, what, where.format(name), *operations)


@pytest.mark.parametrize(("worker", "mode"), [("worker", "classic"), ("sharer", "share")])
def test_the_rights_of_the_readme_are_enough_for_all_that_it_names(server, worker, mode, caplog):
    name = f"least-{uuid.uuid4().hex[:8]}"
    grant(server, name)
    with closing(connect(server.url("declarer", partitions=1))) as declarer, closing(connect(server.url("declarer", partitions=2))) as growing:
        declarer.ensure([Queue(name=name)])
        growing.ensure([Queue(name=name)])
        growing.ensure([Queue(name=name)], passive=True)
    with closing(connect(server.url("relay"))) as relay, closing(connect(server.url(worker, mode=mode))) as working:
        assert relay.publish([message(name)])[0].verdict is Verdict.CONFIRMED
        working.ensure([Queue(name=name)])
        consumer = working.consume({name: 1}, group=name, prefetch=5, name="w")
        consumer.dead_letter(received(consumer)[0], "no such address")
        with closing(connect(server.url("operator", mode=mode))) as operator:
            letters = operator.dead_letters(name)
            assert letters.put_back([letter.id for letter in letters.list()]) == [f"{name}.dlq@0"]
            assert letters.list() == []
            assert operator.depth(name)["failed"] == 0
        assert bodies(received(consumer)) == [b"0"]
    assert "uthorization failed" not in caplog.text


WRONG = {
    "the wrong password": (lambda server: server.url("shop").replace("4711", "4712"), AccessDenied, "Invalid username or password"),
    "the wrong mechanism": (lambda server: server.url("shop", **{"sasl.mechanism": "SCRAM-SHA-256"}), AccessDenied, "SCRAM-SHA-256"),
    "another CA": (lambda server: server.url_with_tls("shop").replace("ca.pem", "client.pem"), Unavailable, "certificate could not be verified"),
    "no TLS": (lambda server: f"kafka://{server.tls}", Unavailable, "does it want TLS or a login"),
    "no login": (lambda server: f"kafka://{server.login}", Unavailable, "does it want TLS or a login"),
    "no certificate": (
        lambda server: f"kafka://{server.mutual}?security.protocol=SSL&ssl.ca.location={server.folder}/ca.pem",
        Unavailable,
        "certificate required",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_who_is_not_let_in_is_told_why_within_seconds_and_no_password_is_shown(server, name, what, caplog):
    caplog.set_level(0)
    url, error, why = WRONG[what]
    with closing(connect(url(server))) as adapter:
        with pytest.raises(error, match=why) as refused:
            adapter.consume({name: 1}, group=name, prefetch=5, name="w")
        (outcome,) = adapter.publish([message(name)])
    assert outcome.verdict is Verdict.UNKNOWN
    assert why in outcome.reason
    for shown in (str(refused.value), outcome.reason, caplog.text):
        assert "p@ss" not in shown
        assert "p%40ss" not in shown
        assert PASSWORD not in shown


def test_a_message_that_may_not_be_written_is_refused_for_good_and_stops_no_other(server, name):
    mine = f"mine-{name}"
    server.allow("stranger", topics="mine-")
    with closing(connect(server.url("root"))) as root:
        root.ensure([Queue(name=mine)])
    with closing(connect(server.url("stranger"))) as adapter:
        outcomes = adapter.publish([message(mine, 0), message(name), message(mine, 1)])
    assert [outcome.verdict for outcome in outcomes] == [Verdict.CONFIRMED, Verdict.REFUSED, Verdict.CONFIRMED]
    assert "Topic authorization failed" in outcomes[1].reason


@both
def test_s057_a_topic_that_we_may_not_read_is_told_by_its_name(server, name, mode):
    with closing(connect(server.url("stranger", mode=mode))) as adapter:
        for use in (
            lambda: adapter.consume({name: 1}, group=name, prefetch=5, name="w"),
            lambda: adapter.depth(name),
            lambda: adapter.dead_letters(name).list(),
            lambda: adapter.ensure([Queue(name=name)]),
        ):
            with pytest.raises(AccessDenied, match=f"topic '{name}(.dlq)?': .*uthorization failed"):
                use()


@both
def test_s057_rights_that_are_taken_away_are_told_for_as_long_as_it_lasts_and_work_goes_on_when_they_are_back(server, name, mode):
    user = "stranger"
    server.allow(user, topics=name, groups=name)
    with closing(connect(server.url(user, mode=mode, **{"topic.metadata.refresh.interval.ms": 500}))) as adapter:
        consumer = adapter.consume({name: 1}, group=name, prefetch=5, name="w")
        server.forbid(user, name)
        wait_until(lambda: _is_told(consumer, name))
        assert all(_is_told(consumer, name) for _ in range(3))
        server.allow(user, topics=name, groups=name)
        with closing(connect(server.url("root"))) as root:
            root.publish([message(name)])
        wait_until(lambda: _bodies_or_none(consumer) == [b"0"])


def _is_told(consumer: Consumer, name: str) -> bool:
    try:
        consumer.receive(1, 0.2)
    except Unavailable as told:
        return name in str(told) and "uthorization failed" in str(told)
    return False


def _bodies_or_none(consumer: Consumer) -> list[bytes]:
    with suppress(Unavailable):
        return bodies(consumer.receive(1, 0.2))
    return []


APP = """
from postroom.consumers import Jobs

jobs = Jobs(group="forbidden")

@jobs.handler("send", queue={name!r})
def send(payload: dict) -> None:
    pass
"""


@pytest.mark.parametrize(("mode", "group"), [("classic", "forbidden"), ("share", "forbidden.share")])
def test_s057_a_worker_whose_group_is_denied_says_so_in_clear_words(server, name, mode, group, tmp_path):
    (tmp_path / "shop.py").write_text(APP.format(name=name))
    variables = {"POSTROOM_DATABASE": f"sqlite:///{tmp_path}/postroom.db", "POSTROOM_BROKER": server.url("shop", mode=mode)}
    assert postroom("schema", "create", cwd=tmp_path, **variables).returncode == 0
    said = tmp_path / "said"
    with said.open("w") as out:
        worker = subprocess.Popen([*COMMAND, "work", "shop:jobs"], cwd=tmp_path, env=environment(variables), stdout=out, stderr=out)
        wait_until(lambda: f"group '{group}': " in said.read_text())
        worker.terminate()
        worker.wait(60)
    _shows_one_line_of_its_own(said, group)


def _shows_one_line_of_its_own(said: Path, group: str) -> None:
    lines = [line for line in said.read_text().splitlines() if "uthorization failed" in line]
    assert len(lines) == 1
    assert f"group '{group}'" in lines[0]
    assert "p@ss" not in said.read_text()
    assert "p%40ss" not in said.read_text()
