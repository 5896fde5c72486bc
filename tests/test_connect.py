"""One URL chooses the backend; a mistake in it gets one line, with the remedy and without the secret."""

from __future__ import annotations

import sqlite3
import subprocess
import sys

import pytest

import postroom.adapters
from postroom.adapters import ConfigurationError, MissingExtra, Queue, UnknownScheme, connect
from postroom.adapters.connect import BACKENDS
from postroom.adapters.memory import Memory
from postroom.adapters.urls import redact, scheme_of

SECRET = "p4ssw0rd"  # noqa: S105 - the one that must not be shown


def test_memory_gives_a_new_and_empty_broker_each_time():
    first, second = connect("memory:"), connect("memory:")
    first.ensure([Queue(name="emails")])
    assert isinstance(first, Memory)
    assert (first.carriers(), second.carriers()) == (["emails"], [])


def test_a_memory_with_a_name_is_refused_with_the_remedy():
    with pytest.raises(ConfigurationError, match="pass the adapter itself"):
        connect("memory:shared")


def test_a_memory_takes_no_options():
    with pytest.raises(ConfigurationError, match="memory: has no options, and 'pool_size' is given"):
        connect("memory:", {"pool_size": 1})


def test_options_beside_the_url_reach_the_database_s_engine_and_its_driver(tmp_path):
    class Mine(sqlite3.Connection):
        pass

    adapter = connect(f"sqlite:///{tmp_path}/jobs.db", {"pool_size": 2, "connect_args": {"factory": Mine}})
    engine = adapter._engine  # noqa: SLF001 - nothing else shows it
    assert engine.pool.size() == 2
    with engine.connect() as connection:
        assert isinstance(connection.connection.driver_connection, Mine)
    adapter.close()


@pytest.mark.parametrize(
    ("url", "options", "told"),
    [
        ("postgresql://user:p4ssw0rd@host/jobs", {"no_such": 1}, "no_such"),
        ("postgresql://user:p4ssw0rd@host/jobs", {"connect_args": {"no_such": 1}}, "no_such"),
        ("mysql://user:p4ssw0rd@host/jobs", {"connect_args": {"no_such": 1}}, "no_such"),
        ("postgresql://user:p4ssw0rd@host/jobs?connect_timeout=3", {"connect_args": {"connect_timeout": 4}}, "'connect_timeout' is given twice"),
        ("postgresql://user:p4ssw0rd@host/jobs", {"connect_args": {"password": "another"}}, "'password' is given twice"),
        ("postgresql://user:p4ssw0rd@host/jobs", {"isolation_level": "SERIALIZABLE"}, "isolation_level: refused"),
        ("mysql://user:p4ssw0rd@host/jobs", {"connect_args": {"client_flag": 0}}, "'client_flag' is given twice"),
        ("sqlite:///jobs.db", {"isolation_level": "AUTOCOMMIT"}, "isolation_level: refused"),
    ],
)
def test_options_beside_a_database_s_url_that_can_t_be_are_refused_at_start(url, options, told):
    with pytest.raises(ConfigurationError, match=told) as refused:
        connect(url, options)
    assert SECRET not in str(refused.value)
    assert "another" not in str(refused.value)


def test_a_file_is_enough_for_a_durable_queue(tmp_path):
    adapter = connect(f"sqlite:///{tmp_path}/jobs.db")
    assert adapter.capabilities.durable
    adapter.close()


@pytest.mark.parametrize("url", ["carrier-pigeon://user:p4ssw0rd@loft/one", "jobs.db", "", "http://[half:p4ssw0rd@"])
def test_an_unknown_scheme_is_refused_and_the_known_ones_are_listed(url):
    with pytest.raises(UnknownScheme) as refused:
        connect(url)
    told = str(refused.value)
    assert all(scheme in told for scheme in BACKENDS)
    assert SECRET not in told
    assert "\n" not in told


@pytest.mark.parametrize("url", ["sqlite:", "sqlite:postroom.db"])
def test_a_sqlite_url_that_is_none_is_told_how_a_file_is_named(url):
    with pytest.raises(ConfigurationError, match=f"'{url}' is no database URL; write it like sqlite:///postroom.db$"):
        connect(url)


def test_a_missing_client_library_is_named_with_the_extra_that_brings_it(monkeypatch):
    monkeypatch.setitem(BACKENDS, "amqp", ("a_client_library_that_is_not_there", "open", "rabbitmq"))
    with pytest.raises(MissingExtra) as missing:
        connect(f"amqp://user:{SECRET}@broker/")
    assert str(missing.value) == ("'amqp://user:***@broker/' needs the a_client_library_that_is_not_there library: pip install 'postroom[rabbitmq]'")


def test_a_fault_of_our_own_is_not_told_as_a_missing_library(monkeypatch):
    monkeypatch.setitem(BACKENDS, "amqp", ("postroom.adapters.no_such_module", "open", "rabbitmq"))
    with pytest.raises(ModuleNotFoundError):
        connect("amqp://broker/")


@pytest.mark.parametrize("module", ["postroom.adapters", "postroom.adapters.memory"])
def test_importing_the_seam_imports_no_client_library(module):
    script = f"import sys, {module}; print(*(name.partition('.')[0] for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"sqlalchemy", "pika", "confluent_kafka", "pytest"} & set(done.stdout.split())


def test_what_is_public_is_listed_and_sorted():
    listed = postroom.adapters.__all__
    public = {name for name, value in vars(postroom.adapters).items() if not name.startswith("_") and type(value).__name__ != "module"}
    assert sorted(public) == listed


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://user:p4ssw0rd@host/jobs", "postgresql://user:***@host/jobs"),
        ("amqp://:p4ssw0rd@host/", "amqp://:***@host/"),
        ("amqp://user:p4ss/w0rd?#@host/vhost", "amqp://user:***@host/vhost"),
        ("amqp://us@er:p4ss@w0rd@host/", "amqp://us@er:***@host/"),
        ("kafka://host:9092?sasl.password=p4ssw0rd&mode=share", "kafka://host:9092?sasl.password=***&mode=share"),
        ("kafka://host:9092?mode=share&ssl.key.pem=p4ssw0rd", "kafka://host:9092?mode=share&ssl.key.pem=***"),
        ("postgresql://host/jobs?PASSWORD=p4ssw0rd", "postgresql://host/jobs?PASSWORD=***"),
        ("can't reach amqp://a:p4ssw0rd@one nor amqp://b:p4ssw0rd@two today", "can't reach amqp://a:***@one nor amqp://b:***@two today"),
        ("password=p4ssw0rd host=db", "password=*** host=db"),
        ("host=db password='p4ss \\' w0rd' user=u", "host=db password=*** user=u"),
        ("postgresql://h:1/jobs?password=p4ssw0rd", "postgresql://h:1/jobs?password=***"),
        ("postgresql://h:1/jobs?password=p4ss@w0rd&sslmode=require", "postgresql://h:***@***&sslmode=require"),
        ("postgresql://u@h:1/jobs?sslpassword=p4ss@w0rd", "postgresql://u@h:***@***"),
        ("kafka://host:9092,other:9092?mode=share", "kafka://host:9092,other:9092?mode=share"),
        ("amqp:/user:p4ssw0rd@host/vhost", "amqp:***@host/vhost"),
        ("amqp:user:p4ss@w0rd@host", "amqp:***@host"),
        ("user:p4ssw0rd@host:5672", "user:***@host:5672"),
        ("//user:p4ssw0rd@host", "//***@host"),
        ("can't reach 'user:p4ssw0rd@host': no", "can't reach 'user:***@host': no"),
        ("sqlite:///postroom.db", "sqlite:///postroom.db"),
        ("amqp://host:5672/vhost", "amqp://host:5672/vhost"),
    ],
)
def test_a_url_is_shown_without_its_secret(url, shown):
    assert redact(url) == shown


@pytest.mark.parametrize(
    ("url", "scheme"),
    [("sqlite:///jobs.db", "sqlite"), ("postgresql+psycopg://host/jobs", "postgresql"), ("MEMORY:", "memory"), ("jobs.db", ""), ("", "")],
)
def test_the_scheme_is_what_stands_before_the_colon_without_the_driver(url, scheme):
    assert scheme_of(url) == scheme
