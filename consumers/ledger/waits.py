"""How long one statement of the ledger may wait for another transaction's lock, so that one stalled process can't stall a worker."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

__all__ = ["MOST_LOCK_WAIT", "Blocked", "bounded_waits"]

MOST_LOCK_WAIT = 1
"""Whole seconds: MySQL counts in nothing finer."""

_POSTGRESQL = f"SET LOCAL lock_timeout = '{MOST_LOCK_WAIT}s'"
_MYSQL = f"SET @postroom_lock_wait = @@SESSION.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = {MOST_LOCK_WAIT}"
_MYSQL_AFTER = "SET SESSION innodb_lock_wait_timeout = @postroom_lock_wait"
_TIMEOUTS = {"55P03", 1205}


class Blocked(Exception):  # noqa: N818 - a signal between two functions, no error for anybody's eyes
    """Another transaction has held a lock for longer than a round may wait."""


@contextmanager
def bounded_waits(connection: Connection) -> Iterator[None]:
    """Bound each wait for a lock inside to one second; raise Blocked when it is over. SQLite has one lock, taken at BEGIN."""
    dialect = connection.dialect.name
    try:
        if dialect == "postgresql":
            connection.exec_driver_sql(_POSTGRESQL)
        elif dialect != "sqlite":
            connection.exec_driver_sql(_MYSQL)
        yield
        if dialect in {"mysql", "mariadb"}:
            connection.exec_driver_sql(_MYSQL_AFTER)
    except DBAPIError as error:
        if _code(error) in _TIMEOUTS:
            raise Blocked from error
        raise


def _code(error: DBAPIError) -> object:
    original = error.orig
    return getattr(original, "sqlstate", None) or (original.args[0] if original is not None and original.args else None)
