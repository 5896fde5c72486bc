"""Empty databases on a server, in a few milliseconds each.

PostgreSQL copies about 300 files to make a database, which takes from 30 to 300 ms. So one that a test has left is emptied
and renamed for the next: a process that the test forgot can't find it again.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import sqlalchemy
from sqlalchemy import URL, Connection
from sqlalchemy.engine import make_url

DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}

_spare: defaultdict[URL, list[URL]] = defaultdict(list)


@contextmanager
def connected(url: str | URL) -> Iterator[Connection]:
    """An autocommitting connection of the tests' own, closed at the end. Takes URLs without a driver, as Postroom does."""
    parsed = make_url(url)
    engine = sqlalchemy.create_engine(parsed.set(drivername=DRIVERS[parsed.drivername]), isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


@contextmanager
def fresh_database(server_url: str) -> Iterator[str]:
    """The URL of an empty database on this server. At the end its connections are cut and its name is gone."""
    server = make_url(server_url)
    spare = _spare[server]
    database = spare.pop() if spare else _first(server)
    try:
        yield database.render_as_string(hide_password=False)
    finally:
        spare.append(_renewed(server, database))


def _first(server: URL) -> URL:
    with connected(server) as connection:
        return _created(connection, server)


def _renewed(server: URL, used: URL) -> URL:
    with connected(server) as connection:
        if server.drivername == "mysql":
            return _renewed_mysql(connection, server, used)
        return _renewed_postgresql(connection, server, used)


def _renewed_postgresql(connection: Connection, server: URL, used: URL) -> URL:
    renewed = _new_name(server)
    connection.exec_driver_sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (used.database,))
    connection.exec_driver_sql(f"ALTER DATABASE {used.database} RENAME TO {renewed.database}")
    with connected(renewed) as inside:
        inside.exec_driver_sql("DROP SCHEMA public CASCADE")
        inside.exec_driver_sql("CREATE SCHEMA public")
    return renewed


def _renewed_mysql(connection: Connection, server: URL, used: URL) -> URL:
    # DROP would wait for the transactions of whoever is still connected.
    others = connection.exec_driver_sql("SELECT id FROM information_schema.processlist WHERE db = %s", (used.database,))
    for other in others.scalars().all():
        connection.exec_driver_sql(f"KILL {other}")
    connection.exec_driver_sql(f"DROP DATABASE {used.database}")
    return _created(connection, server)


def _created(connection: Connection, server: URL) -> URL:
    database = _new_name(server)
    connection.exec_driver_sql(f"CREATE DATABASE {database.database}")
    return database


def _new_name(server: URL) -> URL:
    return server.set(database=f"test_{uuid4().hex}")
