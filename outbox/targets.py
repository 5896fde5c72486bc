"""The caller's transaction: which connection it runs on, and whether it is a transaction at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, UnboundExecutionError

from postroom.adapters.errors import ConfigurationError, SchemaDrift
from postroom.adapters.sql.engine import is_prepared, shown
from postroom.adapters.sql.transaction import translated

from .rows import insert_rows
from .tables import outbox

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

    from .rows import NewRow

__all__ = ["AsyncTarget", "Target", "connection_of", "unscoped", "write"]

Target: TypeAlias = "Session | scoped_session[Any] | Connection"
AsyncTarget: TypeAlias = "AsyncSession | async_scoped_session[Any] | AsyncConnection"

_MEND = "then a savepoint, and with it the job, could be committed by itself and survive a rollback; call postroom.outbox.prepare(engine) once"

_THE_CONNECTION = "pass the connection of the transaction that the job belongs to: session.connection(bind_arguments={'mapper': YourModel})"


def unscoped(target: Any) -> Any:  # noqa: ANN401 - whatever the caller passed
    """Return the session behind a scoped_session or async_scoped_session; any other target as it is."""
    return target.registry() if hasattr(target, "session_factory") else target


def write(target: Session | Connection, rows: Sequence[NewRow], *, notify: bool) -> None:
    """Insert rows in the caller's transaction. Raises ConfigurationError when there is none, SchemaDrift when the tables are missing."""
    connection = connection_of(target)
    try:
        insert_rows(connection, rows, notify=notify)
    except DBAPIError as error:
        drift = _drift(error, connection.engine)
        if drift is None:
            raise
        raise drift from error


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
        connection = session.connection()
    except UnboundExecutionError:
        connection = _bound_by_table(session)
    _require_one_database(session, connection)
    return connection


def _require_one_database(session: Session, connection: Connection) -> None:
    """A commit that two databases share without two phases can leave the job in one and what it is about not in the other."""
    binds: Mapping[Any, Engine | Connection] = getattr(session, "binds", None) or getattr(session, "_Session__binds", {})  # before SQLAlchemy 2.1
    if any(bind.engine.pool is not connection.engine.pool for bind in binds.values()) and not session.twophase:
        raise ConfigurationError(f"the session works on several databases, and the job would go to {_named(connection)}; {_THE_CONNECTION}")


def _bound_by_table(session: Session) -> Connection:
    """The connection of a session without a bind of its own, if it has one for the outbox's table."""
    try:
        return session.connection(bind_arguments={"clause": outbox})
    except UnboundExecutionError:
        raise ConfigurationError(
            f"the session does not say which database the outbox is in: bind it (Session(engine)); or {_THE_CONNECTION}"
        ) from None


def _require_sqlite_transaction(connection: Connection) -> None:
    driver: Any = connection.connection.dbapi_connection
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        raise _autocommitting(connection)
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
    return shown(connection.engine)


def _drift(error: DBAPIError, engine: Engine) -> SchemaDrift | None:
    """Missing tables in Postroom's words; all other errors are the caller's transaction's own, and stay as they are."""
    try:
        _raise_translated(error, engine)
    except SchemaDrift as drift:
        return drift
    except Exception:  # noqa: BLE001 - told otherwise, or not at all
        return None


def _raise_translated(error: DBAPIError, engine: Engine) -> NoReturn:
    with translated(engine):
        raise error
