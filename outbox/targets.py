"""The caller's transaction: which connection it runs on, and whether it is a transaction at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, UnboundExecutionError

from postroom.adapters.errors import ConfigurationError, SchemaDrift
from postroom.adapters.sql.engine import is_prepared
from postroom.adapters.sql.transaction import translated

from .rows import insert_rows
from .tables import outbox

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

    from .rows import NewRow

__all__ = ["AsyncTarget", "Target", "connection_of", "unscoped", "write"]

Target: TypeAlias = "Session | scoped_session[Any] | Connection"
AsyncTarget: TypeAlias = "AsyncSession | async_scoped_session[Any] | AsyncConnection"

_MEND = "then a savepoint, and with it the job, could be committed by itself and survive a rollback; call postroom.outbox.prepare(engine) once"


def unscoped(target: Target | AsyncTarget) -> Any:  # noqa: ANN401 - what the registry holds
    """Return the session behind a scoped_session or async_scoped_session; any other target as it is."""
    registry = None if isinstance(target, Connection) else getattr(target, "registry", None)
    return target if registry is None else registry()


def write(target: Session | Connection, rows: Sequence[NewRow], *, notify: bool) -> None:
    """Insert rows in the caller's transaction. Raises ConfigurationError when there is none, SchemaDrift when the tables are missing."""
    connection = connection_of(target)
    try:
        insert_rows(connection, rows, notify=notify)
    except DBAPIError as error:
        raise _told(error, connection.engine) from error


def connection_of(target: Session | Connection) -> Connection:
    """Return the connection that carries the transaction of `target`; ConfigurationError unless it is one that a rollback takes back."""
    connection = target if isinstance(target, Connection) else _of_session(target)
    if connection.dialect.name == "sqlite":
        _require_sqlite_transaction(connection)
    elif _autocommits(connection.connection.dbapi_connection):
        raise _autocommitting(connection)
    return connection


def _of_session(session: Session) -> Connection:
    if not hasattr(session, "get_bind"):
        kind = type(session).__name__
        raise ConfigurationError(f"{kind} has no transaction of yours: pass a Session, AsyncSession, Connection or AsyncConnection")
    try:
        return session.connection()
    except UnboundExecutionError:
        return _bound_by_table(session)


def _bound_by_table(session: Session) -> Connection:
    """The connection of a session without a bind of its own, if it has one for the outbox's table."""
    try:
        return session.connection(bind_arguments={"clause": outbox})
    except UnboundExecutionError:
        raise ConfigurationError(
            "the session does not say which database the outbox is in: bind it (Session(engine)), or pass the connection of the "
            "transaction that the job belongs to: session.connection(bind_arguments={'mapper': YourModel})"
        ) from None


def _require_sqlite_transaction(connection: Connection) -> None:
    driver: Any = connection.connection.dbapi_connection
    if getattr(driver, "autocommit", None) is False:  # Python 3.12's own mode: always in a transaction
        return
    if driver.isolation_level is None and not connection.dispatch.begin:
        raise _autocommitting(connection)
    if driver.isolation_level is not None and connection.in_nested_transaction() and not is_prepared(connection):
        raise ConfigurationError(f"{_named(connection)}: Python's sqlite3 opens no transaction before a savepoint; {_MEND}")


def _autocommits(driver: Any) -> bool:  # noqa: ANN401 - any driver's connection
    state = getattr(driver, "autocommit", None)
    return state if isinstance(state, bool) else bool(driver.get_autocommit())


def _autocommitting(connection: Connection) -> ConfigurationError:
    return ConfigurationError(f"{_named(connection)} is in AUTOCOMMIT: the job would not be in one transaction with what it is about")


def _named(connection: Connection) -> str:
    return connection.engine.url.render_as_string(hide_password=True)


def _told(error: DBAPIError, engine: Engine) -> Exception:
    """Missing tables in Postroom's words; all else is the caller's transaction's own, and stays as it is."""
    try:
        with translated(engine):
            raise error
    except SchemaDrift as drift:
        return drift
    except Exception:  # noqa: BLE001 - told otherwise or not at all, it is the same error
        return error
