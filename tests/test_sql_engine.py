"""Engines and transactions: what a wrong URL or an absent server is answered with, and what SQLite needs to be told."""

import asyncio
import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, func, insert, make_url, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

import postroom.adapters
from postroom.adapters.errors import AccessDenied, ConfigurationError, MissingExtra, SchemaDrift, Unavailable, UnknownScheme
from postroom.adapters.sql.engine import engine_url, open_engine, prepare, reading, shown
from postroom.adapters.sql.transaction import transact
from postroom.adapters.text import MAX_TEXT, bounded
from support import services

SECRET = "hunter2-s3cret"  # noqa: S105 - nobody's

things = Table("things", MetaData(), Column("id", Integer, primary_key=True))


@pytest.fixture
def free_port() -> int:
    return services.free_port()


def _said(url: str, kind: type[Exception]) -> str:
    """What the first use of this URL raises: one line, without the secret."""
    with pytest.raises(kind) as error:
        transact(open_engine(url), lambda connection: connection.execute(select(1)))
    assert type(error.value) is kind
    assert SECRET not in str(error.value)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_wrong_password_is_access_denied(server_database_url: str) -> None:
    url = make_url(server_database_url).set(password=SECRET).render_as_string(hide_password=False)
    assert "check the user, the password" in _said(url, AccessDenied)


def test_a_missing_database_is_unavailable_and_the_remedy_is_to_make_it(server_database_url: str) -> None:
    url = make_url(server_database_url).set(database="nowhere").render_as_string(hide_password=False)
    assert _said(url, Unavailable).endswith("create the database first")


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_a_server_that_is_down_is_unavailable(scheme: str, free_port: int) -> None:
    assert f"{free_port}" in _said(f"{scheme}://user:{SECRET}@127.0.0.1:{free_port}/jobs", Unavailable)


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_a_host_without_an_address_is_unavailable(scheme: str) -> None:
    assert "nowhere.invalid" in _said(f"{scheme}://user:{SECRET}@nowhere.invalid/jobs", Unavailable)


def test_a_directory_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    assert _said(f"sqlite:///{tmp_path}/nowhere/jobs.db", Unavailable).endswith("may this user write there?")


def test_a_file_that_is_no_database_is_unavailable_and_untouched(tmp_path: Path) -> None:
    file = tmp_path / "letter.txt"
    file.write_text("Dear Sir or Madam, " * 100)
    assert "file is not a database" in _said(f"sqlite:///{file}", Unavailable)
    assert file.read_text() == "Dear Sir or Madam, " * 100


def test_missing_tables_and_columns_are_schema_drift_with_the_command(database_url: str) -> None:
    engine = open_engine(database_url)
    with pytest.raises(SchemaDrift, match="run `postroom schema create`"):
        transact(engine, lambda connection: connection.execute(select(things)))
    things.create(engine)
    with pytest.raises(SchemaDrift, match="run `postroom schema create`"):
        transact(engine, lambda connection: connection.execute(text("SELECT colour FROM things")))
    engine.dispose()


def test_what_a_statement_itself_does_wrong_stays_the_drivers_error(database_url: str) -> None:
    engine = open_engine(database_url)
    things.create(engine)
    with pytest.raises(DBAPIError):
        transact(engine, lambda connection: connection.execute(insert(things), [{"id": 1}, {"id": 1}]))
    engine.dispose()


def test_a_pool_without_a_free_connection_is_unavailable(sqlite_database_url: str) -> None:
    engine = create_engine(sqlite_database_url, pool_size=1, max_overflow=0, pool_timeout=0.01)
    with engine.connect(), pytest.raises(Unavailable, match="every connection of the pool is busy"):
        transact(engine, lambda connection: connection.execute(select(1)))
    engine.dispose()


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("oracle://user:{secret}@host/jobs", UnknownScheme),
        ("jobs.db", UnknownScheme),
        ("postgresql://user:{secret}@host:port/jobs", ConfigurationError),
        ("postgresql+carrierpigeon://user:{secret}@host/jobs", ConfigurationError),
        ("postgresql+pg8000://user:{secret}@host/jobs", MissingExtra),
        ("sqlite+aiosqlite:///jobs.db", ConfigurationError),
        ("sqlite://", ConfigurationError),
        ("sqlite:///:memory:", ConfigurationError),
        ("sqlite:///file:jobs?mode=memory&uri=true", ConfigurationError),
    ],
)
def test_a_url_that_can_not_work_is_refused_at_once_without_its_secret(url: str, kind: type[Exception]) -> None:
    with pytest.raises(kind) as error:
        open_engine(url.format(secret=SECRET))
    assert SECRET not in str(error.value)
    assert "\n" not in str(error.value)


def test_a_plain_url_gets_our_driver_and_a_named_one_is_kept() -> None:
    assert engine_url("postgres://host/jobs").drivername == "postgresql+psycopg"
    assert engine_url("mariadb://host/jobs").drivername == "mysql+pymysql"
    assert engine_url("mariadb+pymysql://host/jobs").drivername == "mariadb+pymysql"


def test_options_in_the_url_win_over_ours() -> None:
    assert _passed("postgresql://nowhere.invalid/jobs?connect_timeout=1", "connect_timeout") == "1"
    assert _passed("mysql://nowhere.invalid/jobs?connect_timeout=1", "connect_timeout") == 1
    assert _passed("sqlite:///jobs.db?timeout=1", "timeout") == 1.0


def _passed(url: str, option: str) -> Any:
    """What the driver is given for this option when it is to connect."""
    engine = open_engine(url)
    passed: list[object] = []

    def connect(*_: object, **options: object) -> None:
        passed.append(options[option])
        raise engine.dialect.loaded_dbapi.OperationalError("not today")

    engine.dialect.connect = connect
    with pytest.raises(Unavailable):
        transact(engine, lambda connection: connection.execute(select(1)))
    return passed[0]


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Where somebody listens, and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "mariadb+pymysql"])
def test_a_port_that_speaks_another_language_is_unavailable_soon(scheme: str, silent_port: int) -> None:
    began = time.monotonic()
    _said(f"{scheme}://user:{SECRET}@127.0.0.1:{silent_port}/jobs?connect_timeout=2", Unavailable)
    assert time.monotonic() - began < 30, "it waited as for an answer"


def test_to_connect_takes_10_seconds_at_most_unless_the_url_says_otherwise() -> None:
    for scheme in ("postgresql", "mysql"):
        assert _passed(f"{scheme}://nowhere.invalid/jobs", "connect_timeout") == 10
    assert _passed("mysql://nowhere.invalid/jobs", "read_timeout") == 10, "which is for the greeting"


def test_an_answer_of_mysql_may_take_longer_than_its_greeting(mariadb_database_url: str) -> None:
    engine = open_engine(f"{mariadb_database_url}?connect_timeout=1")
    assert transact(engine, lambda connection: connection.execute(text("SELECT sleep(1.5)")).scalar_one()) == 0
    engine.dispose()


@pytest.mark.parametrize(
    ("url", "option"),
    [
        ("postgresql://user:{secret}@nowhere.invalid/jobs?colour=red", "colour"),
        ("postgresql://nowhere.invalid/jobs?password={secret}&colour=red", "colour"),
        ("postgresql://user:{secret}@127.0.0.1:{port}/jobs?connect_timeout=soon", "connect_timeout"),
        ("postgresql://user:{secret}@127.0.0.1:{port}/jobs?sslmode=perhaps", "sslmode"),
        ("postgresql://user:{secret}@127.0.0.1:{port}/jobs?keepalives=often", "keepalives"),
        ("postgresql://user:{secret}@/jobs?port=front", "port"),
        ("mysql://user:{secret}@nowhere.invalid/jobs?colour=red", "colour"),
        ("mariadb+pymysql://user:{secret}@nowhere.invalid/jobs?colour=red", "colour"),
        ("mysql://user:{secret}@nowhere.invalid/jobs?connect_timeout=soon", "connect_timeout"),
        ("mysql://user:{secret}@nowhere.invalid/jobs?read_timeout=-1", "read_timeout"),
        ("mysql://user:{secret}@nowhere.invalid/jobs?charset=runes", "charset"),
        ("mysql://user:{secret}@nowhere.invalid/jobs?ssl_ca=/nowhere/ca.pem", "ssl_ca"),
        ("sqlite:///jobs.db?timeout=soon", "timeout"),
        ("sqlite:///jobs.db?colour=red", "colour"),
        ("sqlite:///file:jobs.db?uri=true&mode=perhaps", "mode"),
    ],
)
def test_a_mistake_in_an_option_of_a_url_is_one_line_that_names_it(url: str, option: str, free_port: int, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"option '{option}': " in _said(url.format(secret=SECRET, port=free_port), ConfigurationError)


def test_a_password_among_the_options_is_shown_as_little_as_the_other(free_port: int) -> None:
    assert "***" in _said(f"postgresql://127.0.0.1:{free_port}/jobs?user=u&password={SECRET}", Unavailable)
    misread = f"postgresql://127.0.0.1:{free_port}/jobs?password=a@{SECRET}"  # by SQLAlchemy: as the host
    assert "write the @ in an option's value as %40" in _said(misread, ConfigurationError)


def test_the_url_of_an_engine_that_others_made_is_shown_without_any_secret_too() -> None:
    engine = create_engine(f"postgresql+psycopg://user:{SECRET}@host/jobs?password={SECRET}&sslmode=require")
    assert shown(engine) == shown(reading(engine)) == "postgresql+psycopg://user:***@host/jobs?password=***&sslmode=require"
    assert SECRET not in shown(open_engine(f"postgresql://host/jobs?password={SECRET}"))


def test_nobody_shows_a_url_in_sqlalchemys_way() -> None:
    """It hides the password before the @, and none among the options. `shown` does; what it builds on is `redact`."""
    sources = [path for part in ("adapters", "outbox", "consumers") for path in Path(postroom.adapters.__path__[0]).parent.glob(f"{part}/**/*.py")]
    assert len(sources) > 50
    assert [path.name for path in sources if "hide_password" in path.read_text()] == ["engine.py"]


# SQLite's transactions


@pytest.fixture
def sqlite_engine(sqlite_database_url: str) -> Iterator[Engine]:
    engine = open_engine(sqlite_database_url)
    things.create(engine)
    yield engine
    engine.dispose()


def _count(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(things)).scalar_one()


def test_s075_a_savepoint_that_comes_first_does_not_commit_by_itself(sqlite_engine: Engine) -> None:
    with sqlite_engine.connect() as connection:
        with connection.begin_nested():
            connection.execute(insert(things).values(id=1))
        connection.rollback()
    assert _count(sqlite_engine) == 0


def test_s075_connections_that_an_engine_had_before_are_transactional_too(sqlite_database_url: str) -> None:
    engine = create_engine(sqlite_database_url)
    things.create(engine)  # now the pool has a connection that opens no transactions
    prepare(prepare(engine))
    with engine.connect() as connection:
        with connection.begin_nested():
            connection.execute(insert(things).values(id=1))
        connection.rollback()
    assert _count(engine) == 0
    engine.dispose()


def test_s075_an_async_engine_is_transactional_too(sqlite_database_url: str) -> None:
    async def story() -> int:
        engine = create_async_engine(sqlite_database_url.replace("sqlite:", "sqlite+aiosqlite:"))
        async with engine.begin() as connection:
            await connection.run_sync(things.create)
        assert prepare(engine) is engine
        async with engine.connect() as connection:
            async with connection.begin_nested():
                await connection.execute(insert(things).values(id=1))
            await connection.rollback()
            count = await connection.execute(select(func.count()).select_from(things))
        await engine.dispose()
        return count.scalar_one()

    assert asyncio.run(story()) == 0


@pytest.mark.skipif(not hasattr(sqlite3, "LEGACY_TRANSACTION_CONTROL"), reason="sqlite3.connect(autocommit=...) came with Python 3.12")
@pytest.mark.parametrize("autocommit", [True, False])
def test_s075_an_engine_with_pythons_own_autocommit_is_transactional_too(sqlite_database_url: str, autocommit: bool) -> None:  # noqa: FBT001
    engine = prepare(create_engine(sqlite_database_url, connect_args={"autocommit": autocommit}))
    with engine.begin() as connection:
        things.create(connection)
    with engine.connect() as connection:
        with connection.begin_nested():
            connection.execute(insert(things).values(id=1))
        connection.rollback()
        connection.execute(insert(things).values(id=2))
        connection.commit()
    assert _count(engine) == 1
    engine.dispose()


def test_a_reading_transaction_takes_no_write_lock(sqlite_engine: Engine) -> None:
    with sqlite_engine.begin() as writer:
        writer.execute(insert(things).values(id=1))
        assert transact(reading(sqlite_engine), lambda connection: connection.execute(select(func.count()).select_from(things))).scalar_one() == 0
    assert _count(sqlite_engine) == 1


def test_a_file_of_ours_lets_readers_and_the_writer_work_side_by_side(sqlite_engine: Engine) -> None:
    with sqlite_engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2


# Text that any database stores


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("a\0b", "a\N{REPLACEMENT CHARACTER}b"),
        ("\ud800!", "?!"),
        ("a\n\x1b[31mb\x9b\r\u202e", "a\n\\x1b[31mb\\x9b\\r\\u202e"),
        ("é" * 9000, "é" * (MAX_TEXT // 2)),
        ("", ""),
    ],
    ids=ascii,
)
def test_s137_text_of_an_error_is_made_storable(text: str, stored: str) -> None:
    assert bounded(text) == stored
    assert len(bounded(text).encode()) <= MAX_TEXT
