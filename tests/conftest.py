"""Fixtures for all tests: databases on the three kinds of server, brokers, and an office for workers on each kind of broker.

A test that asks for one of these needs Docker; no mark says so a second time. A session starts each server once, when it
is first asked for; each test gets an empty database of its own.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import hypothesis
import pytest
from sqlalchemy import Engine

from postroom.adapters import Adapter, connect
from postroom.consumers.ledger import Ledger
from support import services
from support.brokers import IN_PROCESS
from support.databases import fresh_database
from support.inprocess import Office, office_on
from support.kafka import Mock
from support.kafka_server import Server as KafkaServer
from support.ledgers import database, open_ledger
from support.proxy import Proxy
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


@pytest.fixture
def proxy(rabbitmq_url: str) -> Iterator[Proxy]:
    """A way to RabbitMQ that a test may cut."""
    with Proxy(urlsplit(rabbitmq_url).port) as proxy:
        yield proxy


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


@pytest.fixture(scope="module")
def mock() -> Mock:
    """Kafka's stand-in inside its client library."""
    return Mock()


@pytest.fixture
def opened() -> Iterator[Callable[[str], Adapter]]:
    """Opens adapters, and closes them at the end."""
    with ExitStack() as stack:
        yield lambda url: stack.enter_context(closing(connect(url)))


@pytest.fixture
def topic() -> str:
    return f"emails-{uuid.uuid4().hex[:8]}"


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


@pytest.fixture
def name() -> str:
    """The name of a queue that no other test has, for servers that all share."""
    return f"emails-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """An engine on a database with all tables, of each kind in turn."""
    engine = database(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def sqlite_engine(sqlite_database_url: str) -> Iterator[Engine]:
    engine = database(sqlite_database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def book(engine: Engine) -> Ledger:
    return open_ledger(engine)


@pytest.fixture(params=IN_PROCESS)
def here(request: pytest.FixtureRequest) -> Iterator[Office]:
    """An office without a server; or on the kinds of broker with which a test parametrises `here`."""
    with office_on(request.param, request.getfixturevalue) as made:
        yield made
