"""Reaching a RabbitMQ: several hosts, credentials, vhosts and TLS."""

from __future__ import annotations

import subprocess

import pika
import pytest

from postroom.adapters import connect
from postroom.adapters.errors import AccessDenied, Unavailable
from postroom.adapters.seam import Queue, Verdict
from support.rabbit import messages, publish_until_confirmed, receive, subscribe, through, verdicts


def test_the_next_host_is_tried_when_one_is_down_or_goes_down(rabbitmq_url, proxy, opened, name):
    port = pika.URLParameters(rabbitmq_url).port
    hosts = ("no-such-host.invalid", "127.0.0.1:1", f"127.0.0.1:{proxy.port}", f"127.0.0.1:{port}")
    adapter = opened(rabbitmq_url.replace(f"127.0.0.1:{port}", ",".join(hosts)))
    adapter.ensure([Queue(name=name)])
    consumer = subscribe(adapter, name)
    assert verdicts(adapter.publish(messages(name, 1))) == [Verdict.CONFIRMED]
    consumer.ack(receive(consumer, 1))
    assert proxy.connections == 2
    proxy.refuse()
    publish_until_confirmed(adapter, messages(name, 1))
    consumer.ack(receive(consumer, 1))
    assert proxy.connections == 0


def test_hosts_that_are_all_down_are_named_within_the_bound():
    adapter = connect("amqp://shop:p4ssw0rd@127.0.0.1:1,127.0.0.1:2/?stack_timeout=2")
    with pytest.raises(Unavailable, match=r"127.0.0.1:1: .*refused; nor at 127.0.0.1:2: .*refused") as down:
        adapter.ensure([Queue(name="emails")])
    assert "p4ssw0rd" not in str(down.value)
    (outcome,) = adapter.publish(messages("emails", 1))
    assert outcome.verdict is Verdict.UNKNOWN


def test_a_host_that_accepts_and_says_nothing_is_given_up_on(rabbitmq_url, proxy):
    proxy.be_silent()
    adapter = connect(through(proxy, rabbitmq_url, "?stack_timeout=1"))
    with pytest.raises(Unavailable):
        adapter.ensure([Queue(name="emails")])


@pytest.mark.parametrize(("part", "other"), [("postroom:postroom@", "postroom:wrong@"), ("postroom:postroom@", "nobody:postroom@")])
def test_refused_credentials_are_told_apart_from_an_outage(rabbitmq_url, part, other):
    adapter = connect(rabbitmq_url.replace(part, other))
    with pytest.raises(AccessDenied, match="Login was refused"):
        adapter.ensure([Queue(name="emails")])
    with pytest.raises(AccessDenied):
        adapter.publish(messages("emails", 1))


def test_a_vhost_that_is_not_there_is_named(rabbitmq_url):
    with pytest.raises(AccessDenied, match="vhost nowhere not found"):
        connect(f"{rabbitmq_url}/nowhere").ensure([Queue(name="emails")])


def test_vhosts_are_worlds_of_their_own(rabbitmq_server, opened, name):
    rabbitmq_server.ctl("add_vhost", "a/b")
    rabbitmq_server.ctl("set_permissions", "-p", "a/b", "postroom", ".*", ".*", ".*")
    here, there = opened(rabbitmq_server.url), opened(f"{rabbitmq_server.url}/a%2Fb")
    here.ensure([Queue(name=name)])
    there.ensure([Queue(name=name)])
    here.publish(messages(name, 1))
    assert (here.depth(name)["pending"], there.depth(name)["pending"]) == (1, 0)


@pytest.fixture
def certificates(tmp_path):
    """A folder with a CA of its own, and certificates of it for a server called `broker` and for a client."""
    run(tmp_path, "req -x509 -newkey rsa:2048 -nodes -subj /CN=CA -keyout ca.key -out ca.pem")
    for name in ("broker", "client"):
        run(tmp_path, f"req -newkey rsa:2048 -nodes -subj /CN={name} -addext subjectAltName=DNS:{name} -keyout {name}.key -out {name}.csr")
        run(tmp_path, f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -copy_extensions copy -out {name}.pem")
    (tmp_path / "broker.key").rename(tmp_path / "server.key")
    (tmp_path / "broker.pem").rename(tmp_path / "server.pem")
    return tmp_path


def run(folder, command):
    subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)


def test_a_server_behind_tls_is_known_by_its_ca_and_knows_its_client(rabbitmq_server, certificates, opened, name):
    rabbitmq_server.listen_with_tls(5671, certificates)
    there = f"amqps://postroom:postroom@{rabbitmq_server.address}/?cafile={certificates}/ca.pem"
    certificate = f"&certfile={certificates}/client.pem&keyfile={certificates}/client.key"
    adapter = opened(f"{there}{certificate}&server_hostname=broker")
    adapter.ensure([Queue(name=name)])
    assert verdicts(adapter.publish(messages(name, 3, size=500_000))) == [Verdict.CONFIRMED] * 3
    consumer = subscribe(adapter, name)
    consumer.ack(receive(consumer, 3))
    for url, told in (
        (f"{there}{certificate}", "mismatch|doesn't match"),
        (f"{there}&server_hostname=broker", "certificate required|hung up|reset|EOF"),
    ):
        with pytest.raises(Unavailable, match=told):
            opened(url).ensure([Queue(name=name)])
