"""Empty databases on a server, made and dropped in a few milliseconds."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import sqlalchemy
from sqlalchemy import Connection
from sqlalchemy.engine import make_url

DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}


@contextmanager
def connected(url: str) -> Iterator[Connection]:
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
    """The URL of a new, empty database on the server of this URL; dropped at the end, whoever is still connected to it."""
    url = make_url(server_url)
    name = f"test_{uuid4().hex}"
    with connected(server_url) as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    try:
        yield url.set(database=name).render_as_string(hide_password=False)
    finally:
        with connected(server_url) as connection:
            _drop(connection, name)


def _drop(connection: Connection, name: str) -> None:
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
        return
    # MariaDB's DROP would wait for the transactions of whoever is still connected.
    holders = connection.exec_driver_sql("SELECT id FROM information_schema.processlist WHERE db = %s", (name,)).scalars()
    for holder in holders.all():
        connection.exec_driver_sql(f"KILL {holder}")
    connection.exec_driver_sql(f"DROP DATABASE {name}")
