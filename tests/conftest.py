"""Fixtures for all tests: databases on the three kinds of server, brokers, and an office for workers on each kind of broker.

A test that asks for one of these needs Docker; no mark says so a second time. A session starts each server once, when it
is first asked for; each test gets an empty database of its own.
"""

import uuid
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from support import services
from support.brokers import IN_PROCESS, connected_to
from support.databases import fresh_database
from support.inprocess import Office, office
from support.kafka_server import Server as KafkaServer
from support.rabbit import Server

# The conformance suite is shipped as part of the package; its assertions are to explain themselves all the same.
pytest.register_assert_rewrite("postroom.adapters.conformance")

# A slow machine is no failure: what must be quick has a benchmark, not a deadline.
hypothesis.settings.register_profile("postroom", deadline=None)
hypothesis.settings.load_profile("postroom")


@pytest.fixture(scope="session")
def docker_engine() -> None:
    services.require_engine()


@pytest.fixture(scope="session")
def postgres_url(docker_engine: None) -> Iterator[str]:
    with services.running("postgres") as url:
        yield url


@pytest.fixture(scope="session")
def mariadb_url(docker_engine: None) -> Iterator[str]:
    with services.running("mariadb") as url:
        yield url


@pytest.fixture(scope="session")
def rabbitmq_url(docker_engine: None) -> Iterator[str]:
    with services.running("rabbitmq") as url:
        yield url


@pytest.fixture(scope="session")
def breakable_rabbitmq(docker_engine: None) -> Iterator[Server]:
    with services.running("rabbitmq") as url:
        yield Server(url)


@pytest.fixture
def rabbitmq_server(breakable_rabbitmq: Server) -> Iterator[Server]:
    """One that a test may break, if it mends it again. One that fails with the server dead fails alone."""
    yield breakable_rabbitmq
    breakable_rabbitmq.mend()


@pytest.fixture(scope="session")
def kafka_bootstrap(docker_engine: None) -> Iterator[str]:
    with services.running("kafka") as address:
        yield address


@pytest.fixture(scope="session")
def breakable_kafka(docker_engine: None) -> Iterator[KafkaServer]:
    with services.running("kafka") as address:
        yield KafkaServer(address)


@pytest.fixture
def kafka_server(breakable_kafka: KafkaServer) -> Iterator[KafkaServer]:
    """One that a test may break, if it mends it again. One that fails with the server dead fails alone."""
    yield breakable_kafka
    breakable_kafka.mend()


@pytest.fixture
def sqlite_database_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/postroom.db"


@pytest.fixture
def postgresql_database_url(postgres_url: str) -> Iterator[str]:
    with fresh_database(postgres_url) as url:
        yield url


@pytest.fixture
def mariadb_database_url(mariadb_url: str) -> Iterator[str]:
    with fresh_database(mariadb_url) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database_url(request: pytest.FixtureRequest) -> str:
    """An empty database, on each kind in turn."""
    return request.getfixturevalue(f"{request.param}_database_url")


@pytest.fixture(params=["postgresql", "mariadb"])
def server_database_url(request: pytest.FixtureRequest) -> str:
    """An empty database, on each kind that is a server: with row locks and several connections that write."""
    return request.getfixturevalue(f"{request.param}_database_url")


@pytest.fixture(params=IN_PROCESS)
def here(request: pytest.FixtureRequest, sqlite_database_url: str) -> Iterator[Office]:
    """A queue of its own on the kind of broker that `here` is parametrised with; outbox and ledger on SQLite."""
    name = "q" if request.param in IN_PROCESS else f"jobs-{uuid.uuid4().hex[:8]}"
    with connected_to(request.param, request.getfixturevalue) as adapter, office(sqlite_database_url, adapter, name=name) as made:
        yield made
