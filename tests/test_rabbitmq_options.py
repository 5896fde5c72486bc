"""What an amqp: URL says, and what is wrong with it."""

from __future__ import annotations

import inspect
import re
import socket
import ssl
import subprocess
import threading
from contextlib import suppress

import pika
import pytest

from postroom.adapters.connect import connect
from postroom.adapters.errors import ConfigurationError, Unavailable
from postroom.adapters.rabbitmq.layout import QueueType
from postroom.adapters.rabbitmq.options import parse
from postroom.adapters.seam import Queue
from postroom.consumers import Jobs, WorkerSettings
from postroom.consumers.worker.checks import prepare_group

SECRET = "p4ssw0rd"  # noqa: S105 - the one that must not be shown


@pytest.mark.parametrize(
    ("url", "hosts", "user", "password", "virtual_host"),
    [
        ("amqp://broker", (("broker", 5672),), "guest", "guest", "/"),
        ("amqps://broker", (("broker", 5671),), "guest", "guest", "/"),
        ("amqp://shop:p4ssw0rd@broker:5673/orders", (("broker", 5673),), "shop", "p4ssw0rd", "orders"),
        ("amqp://shop:p4ssw0rd@one,two:5673,[::1]:5674/", (("one", 5672), ("two", 5673), ("::1", 5674)), "shop", "p4ssw0rd", "/"),
        ("amqp://a%40b:p%2F%40%3A@broker/a%2Fb", (("broker", 5672),), "a@b", "p/@:", "a/b"),
        ("amqp://shop:@broker", (("broker", 5672),), "shop", "", "/"),
        ("AMQP://broker/%2F", (("broker", 5672),), "guest", "guest", "/"),
    ],
)
def test_a_url_names_hosts_a_user_and_a_vhost(url, hosts, user, password, virtual_host):
    options = parse(url)
    assert (options.hosts, options.user, options.password, options.virtual_host) == (hosts, user, password, virtual_host)


def test_every_option_of_pika_goes_by_its_own_name():
    options = parse(
        "amqp://broker?heartbeat=7&channel_max=9&frame_max=8192&locale=de_DE&socket_timeout=3&stack_timeout=4&connection_attempts=2&retry_delay=0.5"
        '&blocked_connection_timeout=60&client_properties={"team":"shop"}&tcp_options={"TCP_KEEPIDLE":60}'
    )
    (parameters,) = options.parameters("publishing")
    assert (parameters.heartbeat, parameters.channel_max, parameters.frame_max, parameters.locale) == (7, 9, 8192, "de_DE")
    assert (parameters.socket_timeout, parameters.stack_timeout, parameters.connection_attempts, parameters.retry_delay) == (3.0, 4.0, 2, 0.5)
    assert (parameters.blocked_connection_timeout, parameters.tcp_options) == (60.0, {"TCP_KEEPIDLE": 60})
    assert parameters.client_properties.items() >= {"team": "shop", "product": "Postroom"}.items()


def test_no_parameter_of_pika_is_out_of_reach():
    the_rest_of_the_url = {"host", "port", "virtual_host", "credentials", "ssl_options", "kwargs"}
    with pytest.raises(ConfigurationError) as refusal:
        parse("amqp://broker?no=option")
    told = re.findall(r"\w+", str(refusal.value).partition("there are")[2])
    assert {*inspect.signature(pika.ConnectionParameters).parameters} - the_rest_of_the_url <= {*told}


def test_options_of_our_own():
    options = parse("amqp://broker?queue_type=classic&partitions=3&exchange=shop&confirm_timeout=2.5&patience=4&connection_name=checkout")
    assert (options.queue_type, options.partitions, options.exchange) == (QueueType.CLASSIC, 3, "shop")
    assert (options.confirm_timeout, options.patience) == (2.5, 4.0)
    assert options.parameters("publishing")[0].client_properties["connection_name"] == "checkout publishing"


def jobs_with_timeouts(*timeouts):
    jobs = Jobs()
    for number, timeout in enumerate(timeouts):
        jobs.handler(f"job-{number}", queue="emails", timeout=timeout)(lambda _: None)
    return jobs


@pytest.mark.parametrize(("options", "limit"), [("", 1800), ("?consumer_timeout=60", 60)])
def test_s005_a_worker_warns_of_handlers_that_may_run_for_longer_than_the_server_waits_for_an_ack(options, limit):
    jobs = jobs_with_timeouts(None, limit - 1, limit, limit + 1)
    (line,) = prepare_group(jobs, WorkerSettings(), connect(f"amqp://broker{options}"))
    assert line.startswith(f"handlers without a timeout below {limit} s: 'job-0', 'job-2', 'job-3'. A job that takes longer goes to others")
    assert line.endswith("say so in the URL: consumer_timeout=<seconds>, 0 for none")


def test_s005_handlers_of_one_type_are_told_apart_by_queue_and_group_when_it_is_warned_of_them():
    jobs, orders = Jobs(), Queue(name="orders", groups=("billing", "stock"))
    for type_, queue, group in (("placed", orders, "billing"), ("placed", orders, "stock"), ("book", "accounts", None)):
        jobs.handler(type_, queue=queue, group=group)(lambda _: None)
    (line,) = prepare_group(jobs, WorkerSettings(), connect("amqp://broker"))
    assert ": 'book', 'placed' of orders.billing, 'placed' of orders.stock. A job" in line


def test_s005_nothing_is_warned_of_where_all_handlers_end_in_time_or_the_server_has_no_limit():
    assert prepare_group(jobs_with_timeouts(60, 1799), WorkerSettings(), connect("amqp://broker")) == []
    assert prepare_group(jobs_with_timeouts(None), WorkerSettings(), connect("amqp://broker?consumer_timeout=0")) == []


def test_a_certificate_may_stand_for_user_and_password():
    (parameters,) = parse("amqps://broker?auth=external").parameters("publishing")
    assert parameters.credentials.TYPE == "EXTERNAL"


def test_options_beside_the_url_are_as_if_it_said_them_and_may_be_what_no_url_can_say():
    login, tls = pika.PlainCredentials("shop", SECRET), pika.SSLOptions(ssl.create_default_context(), "broker")
    said = {"credentials": login, "ssl_options": tls, "tcp_options": {"TCP_KEEPIDLE": 60}, "heartbeat": 7, "partitions": 3}
    options = parse("amqps://one,two/orders?patience=4", said)
    for parameters in options.parameters("publishing"):
        assert (parameters.credentials, parameters.ssl_options) == (login, tls)
        assert (parameters.heartbeat, parameters.tcp_options) == (7, {"TCP_KEEPIDLE": 60})
    assert (options.partitions, options.patience, options.user) == (3, 4, "shop")
    assert SECRET not in repr(options)


@pytest.mark.parametrize(
    ("url", "options", "told"),
    [
        ("amqp://broker?heartbeat=3", {"heartbeat": 4}, "option 'heartbeat' is given twice"),
        ("amqp://broker", {"hartbeat": 4}, "there is no option 'hartbeat'"),
        ("amqp://broker", {"heartbeat": print}, "option 'heartbeat': a text or a number"),
        ("amqp://broker", {"tcp_options": [1]}, "option 'tcp_options': a JSON object"),
        ("amqp://shop@broker", {"credentials": pika.PlainCredentials("shop", SECRET)}, "who logs in is given twice"),
        ("amqps://broker?auth=external", {"credentials": pika.PlainCredentials("shop", SECRET)}, "who logs in is given twice"),
        (f"amqp://broker?credentials={SECRET}", {}, "option 'credentials': an object of PlainCredentials"),
        ("amqp://broker", {"ssl_options": pika.SSLOptions(ssl.create_default_context())}, "option 'ssl_options' needs amqps:"),
        (
            "amqps://broker?cafile=ca.pem",
            {"ssl_options": pika.SSLOptions(ssl.create_default_context())},
            "'cafile': 'ssl_options' says",
        ),
    ],
)
def test_options_beside_the_url_are_looked_at_as_closely(url, options, told):
    with pytest.raises(ConfigurationError, match=told) as refused:
        connect(url, options)
    assert SECRET not in str(refused.value)


def test_without_a_word_about_it_a_dead_peer_is_missed_within_a_lease():
    (parameters,) = parse("amqp://broker").parameters("consuming")
    assert 0 < parameters.heartbeat <= 20


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("amqp://broker?hartbeat=3", "there is no option 'hartbeat'; there are .*heartbeat"),
        ("amqp://broker?heartbeat=soon", "option 'heartbeat': a whole number from 0 to 65535, not 'soon'"),
        ("amqp://broker?heartbeat=3&heartbeat=4", "option 'heartbeat' is given twice"),
        ("amqp://broker?auth=none", "option 'auth': plain or external, not 'none'"),
        ("amqp://broker?queue_type=mirrored", "option 'queue_type': quorum or classic, not 'mirrored'"),
        ("amqp://broker?partitions=33", "option 'partitions': a whole number from 1 to 32"),
        ("amqp://broker?confirm_timeout=0", "option 'confirm_timeout': more than 0 seconds"),
        ("amqp://broker?connection_name=", "option 'connection_name': it is empty"),
        ("amqp://broker?consumer_timeout=-1", "option 'consumer_timeout': more than 0 seconds"),
        ("amqp://broker?tcp_options=[1]", "option 'tcp_options': a JSON object"),
        ("amqp://broker?cafile=ca.pem", "option 'cafile' needs amqps:"),
        ("amqps://broker?cafile=/no/such/ca.pem", "can't use /no/such/ca.pem"),
        ("amqp://broker/a/b", "write / as %2F in a vhost"),
        ("amqp:/broker", "write it like amqp://user:password@host/vhost"),
        ("amqp://", "it names no host"),
        ("amqp://broker:99999", "it names no host, or no port"),
    ],
)
def test_a_mistake_in_a_url_is_named(url, told):
    with pytest.raises(ConfigurationError, match=told):
        connect(url)


@pytest.mark.parametrize("mark", ["/", "?", "#", "@", "/@", ":"])
@pytest.mark.parametrize("place", [f"{SECRET}{{}}rest", f"start{{}}{SECRET}"])
def test_no_mistake_shows_the_password_wherever_it_ended_up(mark, place):
    with pytest.raises(ConfigurationError) as mistake:
        connect(f"amqp://shop:{place.format(mark)}@broker:port/vhost?no=option")
    assert SECRET not in str(mistake.value)


def test_who_asks_for_tls_where_none_is_spoken_is_told_so():
    def answer():
        client, _ = server.accept()
        with client, suppress(OSError):
            client.recv(1000)
            client.sendall(b"AMQP\x00\x00\x09\x01")
            client.recv(1000)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, daemon=True).start()
        adapter = connect(f"amqps://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(Unavailable, match="no TLS is spoken there: write amqp:"):
            adapter.depth("emails")
        adapter.close()


def test_neither_does_what_was_understood():
    assert SECRET not in repr(parse(f"amqp://shop:{SECRET}@broker"))


def test_a_certificate_of_ones_own_is_loaded(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    options = parse(f"amqps://broker?cafile={certificate}&certfile={certificate}&keyfile={key}&server_hostname=localhost")
    (parameters,) = options.parameters("publishing")
    assert parameters.ssl_options.server_hostname == "localhost"
    assert len(parameters.ssl_options.context.get_ca_certs()) == 1
