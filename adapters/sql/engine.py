"""Engines set up so that every database keeps Postroom's promises: real transactions, short waits, no silent autocommit."""

from __future__ import annotations

import importlib
import os
import time
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from postroom.adapters.errors import ConfigurationError, MissingExtra, UnknownScheme
from postroom.adapters.urls import redact, scheme_of

from .connecting import BUSY_TIMEOUT, engine_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import URL, Connection, Engine, Pool
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["DRIVERS", "engine_url", "is_prepared", "open_engine", "prepare", "reading", "renew_after_fork", "shown"]

AnyEngine = TypeVar("AnyEngine", "Engine", "AsyncEngine")

DRIVERS = {
    "sqlite": ("sqlite", "pysqlite", "sqlite3", ""),
    "postgresql": ("postgresql", "psycopg", "psycopg", "postgresql"),
    "postgres": ("postgresql", "psycopg", "psycopg", "postgresql"),
    "mysql": ("mysql", "pymysql", "pymysql", "mysql"),
    "mariadb": ("mysql", "pymysql", "pymysql", "mysql"),
}
"""For each scheme: SQLAlchemy's dialect, its driver, the module to import, the extra that brings it."""

_LEGACY_TRANSACTION_CONTROL = -1  # sqlite3's name for it exists from Python 3.12 on


def engine_url(url: str) -> URL:
    """Complete a plain URL with the driver Postroom uses; a driver that is named is kept.

    Raises UnknownScheme, MissingExtra or ConfigurationError; none shows the password.
    """
    scheme = scheme_of(url)
    if scheme not in DRIVERS:
        raise UnknownScheme(f"{redact(url)!r}: no database answers to {scheme or 'a URL without a scheme'!r}; use {', '.join(sorted(DRIVERS))}")
    dialect, driver, module, extra = DRIVERS[scheme]
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigurationError(f"{redact(url)!r} is no database URL; write it like {_example(scheme)}") from None
    if "?" in (parsed.password or "") and redact(str(parsed.password)) != parsed.password:  # it took what stands before that @ for the user's
        raise ConfigurationError(f"{redact(url)!r}: write the @ in an option's value as %40")
    if "+" in parsed.drivername:
        return _known_driver(parsed, extra, redact(url))
    _require(module, extra, url)
    return _on_disk(parsed.set(drivername=f"{dialect}+{driver}"))


def open_engine(url: str, *, pool_size: int = 5, options: Mapping[str, Any] | None = None) -> Engine:
    """Return an engine for `url`, not yet connected, with at most `pool_size` idle connections and twice as many busy ones.

    A forked child opens connections of its own. A server gets 10 s to answer, unless the URL says otherwise (`?connect_timeout=`), for each of
    its host's addresses. `options` are create_engine's own. Raises like `engine_url`, and ConfigurationError for an option that the driver doesn't
    know, if it can tell yet.
    """
    target = engine_url(url)
    if options and "isolation_level" in options:
        raise ConfigurationError("isolation_level: refused, because who takes which job rests on ours")
    sized = {"pool_size": pool_size, "max_overflow": pool_size, **(options or {})}
    if target.get_backend_name() == "sqlite":
        engine = engine_for(target, url, **sized)
        event.listen(engine, "connect", _wal)
    else:
        engine = engine_for(target, url, **{"pool_pre_ping": True, **sized, "isolation_level": "READ COMMITTED"})
    if engine.dialect.name == "postgresql":
        event.listen(engine, "connect", _no_jit)
    renew_after_fork(engine)
    engine.update_execution_options(postroom_url=redact(url))
    return prepare(engine)


def shown(engine: Engine) -> str:
    """The URL of an engine as its user wrote it, without a secret; of one that we have not opened, as SQLAlchemy writes it.

    The one way to show an engine's URL: SQLAlchemy's own leaves secrets among the options.
    """
    written: str = engine.get_execution_options().get("postroom_url", "")
    return written or redact(engine.url.render_as_string(hide_password=True))


def prepare(engine: AnyEngine) -> AnyEngine:
    """Make a SQLite engine (or AsyncEngine) transactional, in place, and return it; other engines are left as they are.

    Python's sqlite3 opens a transaction only before the first INSERT, so a savepoint that comes first would commit by itself; here
    every transaction begins with BEGIN IMMEDIATE, which also waits for the write lock at the one place where waiting is safe.
    Connections that the engine has opened before are covered too.
    """
    inner: Any = getattr(engine, "sync_engine", engine)
    if inner.dialect.name == "sqlite" and not event.contains(inner, "begin", _begin):
        event.listen(inner, "begin", _begin)
    return engine


def is_prepared(connection: Connection) -> bool:
    """Whether the engine of this connection has been through `prepare` (or `open_engine`)."""
    return any(listener is _begin for listener in connection.dispatch.begin)


def reading(engine: Engine) -> Engine:
    """The same engine for transactions that only read: on SQLite they don't take the write lock."""
    return engine.execution_options(postroom_reading=True)


def renew_after_fork(engine: Engine) -> None:
    """Have a forked child open connections of its own: two processes that speak on one connection destroy it.

    The parent's are kept there, unused: to close them would say goodbye in the parent's name.
    """
    known = weakref.ref(engine)
    inherited: list[Pool] = []

    def renew() -> None:
        if (mine := known()) is not None:
            inherited.append(mine.pool)
            mine.dispose(close=False)

    os.register_at_fork(after_in_child=renew)


def _example(scheme: str) -> str:
    return "sqlite:///postroom.db" if scheme == "sqlite" else f"{scheme}://user:password@host/database"


def _require(module: str, extra: str, url: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError:
        raise MissingExtra(f"{redact(url)!r} needs the {module} library: pip install 'postroom[{extra}]'") from None


def _known_driver(url: URL, extra: str, shown: str) -> URL:
    try:
        dialect = url.get_dialect()
        dialect.import_dbapi()
    except NoSuchModuleError:
        raise ConfigurationError(f"{shown!r}: SQLAlchemy knows no driver {url.get_driver_name()!r}; leave it out to use Postroom's own") from None
    except ImportError as error:
        raise MissingExtra(f"{shown!r} needs the {error.name} library; without a driver in the URL: pip install 'postroom[{extra}]'") from None
    if dialect.is_async:
        raise ConfigurationError(f"{shown!r}: {url.get_driver_name()} is an async driver, and Postroom's own connections are not; leave it out")
    return _on_disk(url)


def _on_disk(url: URL) -> URL:
    if url.get_backend_name() == "sqlite" and (not url.database or ":memory:" in url.database or url.query.get("mode") == "memory"):
        remedy = "name a file, like sqlite:///postroom.db, or use memory: for queues that may be lost"
        raise ConfigurationError(f"SQLite in memory is another, empty database for each connection: {remedy}")
    return url


def _wal(dbapi_connection: Any, _record: object) -> None:  # noqa: ANN401 - the driver's own connection
    """Readers don't block the writer; each commit is on the disk before it returns."""
    _switch_to_wal(dbapi_connection)
    dbapi_connection.execute("PRAGMA synchronous=FULL")


def _switch_to_wal(dbapi_connection: Any) -> None:  # noqa: ANN401 - the driver's own connection
    """The switch, which is for good, needs the file for itself and doesn't wait for it: several that open a new file at once must take turns."""
    late = time.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            dbapi_connection.execute("PRAGMA journal_mode=WAL")
        except dbapi_connection.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > late:
                raise
            time.sleep(0.01)
        else:
            return


def _no_jit(dbapi_connection: Any, _record: object) -> None:  # noqa: ANN401 - the driver's own connection
    """Our statements take a millisecond. Over a long backlog the planner believes them long, and would compile each for a tenth of a second."""
    with dbapi_connection.cursor() as cursor:
        cursor.execute("SET jit = off")
    dbapi_connection.commit()


def _begin(connection: Connection) -> None:
    """Take transactions out of sqlite3's hands, and begin one."""
    driver: Any = connection.connection.dbapi_connection
    if getattr(driver, "autocommit", _LEGACY_TRANSACTION_CONTROL) != _LEGACY_TRANSACTION_CONTROL:
        driver.autocommit = _LEGACY_TRANSACTION_CONTROL
    if driver.isolation_level is not None:
        driver.isolation_level = None
    reads = connection.get_execution_options().get("postroom_reading", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
