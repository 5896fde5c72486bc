"""Engines set up so that every database keeps Postroom's promises: real transactions, short waits, no silent autocommit."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from postroom.adapters.errors import ConfigurationError, MissingExtra, UnknownScheme
from postroom.adapters.urls import redact, scheme_of

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine

__all__ = ["DRIVERS", "engine_url", "open_engine", "prepare", "reading"]

DRIVERS = {
    "sqlite": ("sqlite", "pysqlite", "sqlite3", ""),
    "postgresql": ("postgresql", "psycopg", "psycopg", "postgresql"),
    "postgres": ("postgresql", "psycopg", "psycopg", "postgresql"),
    "mysql": ("mysql", "pymysql", "pymysql", "mysql"),
    "mariadb": ("mysql", "pymysql", "pymysql", "mysql"),
}
"""For each scheme: SQLAlchemy's dialect, its driver, the module to import, the extra that brings it."""

BUSY_TIMEOUT = 30.0
"""How long (seconds) SQLite waits for another process's write before it gives up."""


def engine_url(url: str) -> URL:
    """Complete a plain URL with the driver Postroom uses; a driver that is named is kept.

    Raises UnknownScheme, MissingExtra or ConfigurationError; none shows the password.
    """
    scheme = scheme_of(url)
    if scheme not in DRIVERS:
        raise UnknownScheme(f"{redact(url)!r}: no database answers to {scheme or url!r}; use {', '.join(sorted(DRIVERS))}")
    dialect, driver, module, extra = DRIVERS[scheme]
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ConfigurationError(f"{redact(url)!r} is no database URL; write it like {scheme}://user:password@host/database") from None
    if "+" in parsed.drivername:
        return parsed
    _require(module, extra, url)
    return parsed.set(drivername=f"{dialect}+{driver}")


def open_engine(url: str, *, pool_size: int = 5) -> Engine:
    """Return an engine for `url`, not yet connected, with at most `pool_size` idle connections and twice as many busy ones."""
    target = engine_url(url)
    if target.get_backend_name() == "sqlite":
        engine = create_engine(target, connect_args={"timeout": BUSY_TIMEOUT}, pool_size=pool_size, max_overflow=pool_size)
        event.listen(engine, "connect", _wal)
    else:
        engine = create_engine(target, isolation_level="READ COMMITTED", pool_size=pool_size, max_overflow=pool_size, pool_pre_ping=True)
    return prepare(engine)


def prepare(engine: Engine) -> Engine:
    """Make a SQLite engine transactional, in place, and return it; other engines are left as they are.

    Python's sqlite3 opens a transaction only before the first INSERT, so a savepoint that comes first would commit by itself; here
    every transaction begins with BEGIN IMMEDIATE, which also waits for the write lock at the one place where waiting is safe.
    """
    if engine.dialect.name == "sqlite" and not event.contains(engine, "begin", _begin):
        event.listen(engine, "connect", _manual_transactions)
        event.listen(engine, "begin", _begin)
    return engine


def reading(engine: Engine) -> Engine:
    """The same engine for transactions that only read: on SQLite they don't take the write lock."""
    return engine.execution_options(postroom_reading=True)


def _require(module: str, extra: str, url: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError:
        raise MissingExtra(f"{redact(url)!r} needs the {module} library: pip install 'postroom[{extra}]'") from None


def _wal(dbapi_connection: Any, _record: object) -> None:  # noqa: ANN401 - the driver's own connection
    """Readers don't block the writer; each commit is on the disk before it returns."""
    dbapi_connection.execute("PRAGMA journal_mode=WAL")
    dbapi_connection.execute("PRAGMA synchronous=FULL")


def _manual_transactions(dbapi_connection: Any, _record: object) -> None:  # noqa: ANN401 - the driver's own connection
    dbapi_connection.isolation_level = None


def _begin(connection: Connection) -> None:
    reads = connection.get_execution_options().get("postroom_reading", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
