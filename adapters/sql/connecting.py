"""Connecting: not for ever, and with a mistake in the URL told as the mistake it is, in one line."""

from __future__ import annotations

import inspect
import re
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, event
from sqlalchemy.exc import SAWarning

from postroom.adapters.errors import ConfigurationError, Unavailable
from postroom.adapters.urls import redact

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import URL, Engine

__all__ = ["BUSY_TIMEOUT", "engine_for", "patience_of"]

BUSY_TIMEOUT = 30.0
"""How long (seconds) SQLite waits for another process's write before it gives up."""

# No call waits for ever for a server that has gone without a word: 10 s to connect, about a minute for an answer on a dead line.
_LIBPQ = {"connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 60_000}
_PATIENCE: Mapping[str, Mapping[str, Any]] = {
    "pysqlite": {"timeout": BUSY_TIMEOUT},
    "psycopg": _LIBPQ,
    "psycopg2": _LIBPQ,
    "pymysql": {"connect_timeout": 10, "read_timeout": 90, "write_timeout": 60},
    "aiosqlite": {"timeout": BUSY_TIMEOUT},
    "aiomysql": {"connect_timeout": 10},
}

_ABOUT_THE_URL = re.compile(r"invalid connection option|bad value for |invalid \S+ value: |for connection option |no such (?:access mode|vfs)")
"""What libpq, psycopg and SQLite say of an option that is not, or that can't have this value."""


def engine_for(target: URL, written: str, *, connect_args: Mapping[str, Any] | None = None, **options: Any) -> Engine:  # noqa: ANN401 - create_engine's own
    """An engine with time limits, where neither `target` nor `connect_args` has its own. `written` is the URL as its user wrote it.

    Raises ConfigurationError for a mistake in an option. Some values only the driver can judge, when it connects: it is raised there then.
    """
    mine = dict(connect_args or {})
    names = {**target.query, **mine}
    with _mistakes_told(names, written), warnings.catch_warnings():
        warnings.simplefilter("error", SAWarning)  # it warns of an option that it ignores
        engine = create_engine(target, connect_args={**patience_of(target), **mine}, **options)
        said = engine.dialect.create_connect_args(target)[1]
        _try_out(engine, {**said, **mine})
    if twice := sorted(mine.keys() & said.keys()):
        raise ConfigurationError(f"{redact(written)}: option {twice[0]!r} is given twice, in connect_args and before")
    errors = engine.dialect.loaded_dbapi.Error

    def connect(dialect: Any, _record: object, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:  # noqa: ANN401 - the driver's own
        with _mistakes_told(names, written, errors):
            return _greeted(dialect, arguments, options) if dialect.driver == "pymysql" else dialect.connect(*arguments, **options)

    event.listen(engine, "do_connect", connect)
    return engine


def patience_of(target: URL) -> dict[str, Any]:
    """The time limits for connections of this driver, but for those that the URL sets itself."""
    return {name: value for name, value in _PATIENCE.get(target.get_driver_name(), {}).items() if name not in target.query}


def _try_out(engine: Engine, options: Mapping[str, Any]) -> None:
    """Have the driver look at the options before it has a server to speak to; raises whatever it does."""
    driver: Any = engine.dialect.loaded_dbapi
    if engine.dialect.driver == "pymysql":
        driver.connect(**options, defer_connect=True)
    elif engine.dialect.driver == "psycopg":
        own = inspect.signature(driver.connect).parameters
        driver.conninfo.make_conninfo(**{name: value for name, value in options.items() if name not in own})


def _greeted(dialect: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:  # noqa: ANN401 - the driver's own
    """PyMySQL waits for the server's greeting as long as for an answer: too long for a port where something else listens, and says nothing."""
    connection = dialect.connect(*arguments, **{**options, "read_timeout": options["connect_timeout"]})
    connection._read_timeout = options["read_timeout"]  # noqa: SLF001 - it offers no other way
    return connection


@contextmanager
def _mistakes_told(names: Mapping[str, object], written: str, errors: type[Exception] | tuple[()] = ()) -> Iterator[None]:
    """What the driver raises inside, beside its own `errors` that say nothing of the URL, becomes a line that names the option."""
    try:
        yield
    except Exception as error:  # drivers raise whatever they come across: TypeError, ValueError, AttributeError, OSError ...
        if isinstance(error, errors) and not _ABOUT_THE_URL.search(str(error)):
            raise
        if isinstance(error, OSError) and errors:
            raise Unavailable(f"{redact(written)}: {error}") from error
        raise ConfigurationError(f"{redact(written)}: {_blamed(error, names)}") from error


def _blamed(error: Exception, names: Mapping[str, object]) -> str:
    said = redact(" ".join(str(error).split()).partition(" and are being ignored")[0])
    meant = [name for name, value in names.items() if f"'{value}'" in said or f'"{value}"' in said or name in said] or [*names]
    return f"option {' or '.join(map(repr, meant))}: {said}" if meant else said
