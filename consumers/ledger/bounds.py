"""Bounds on what a statement of the ledger may cost, so that neither a stalled process nor a stale plan can stall a worker."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

__all__ = ["MOST_LOCK_WAIT", "Blocked", "bounded"]

MOST_LOCK_WAIT = 1
"""Whole seconds: MySQL counts in nothing finer."""

# Plans are made once and kept: those that read all of a table are quick only while it is small.
_POSTGRESQL = f"SET LOCAL lock_timeout = '{MOST_LOCK_WAIT}s'; SET LOCAL enable_seqscan = off"
_MYSQL = (
    f"SET @postroom_lock_wait = @@SESSION.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = {MOST_LOCK_WAIT}",
    "SET SESSION innodb_lock_wait_timeout = @postroom_lock_wait",
)
_SETTINGS = {"postgresql": (_POSTGRESQL, ""), "mysql": _MYSQL, "mariadb": _MYSQL}
_TIMEOUTS = {"55P03", 1205}


class Blocked(Exception):
    """Another transaction has held a lock for longer than a statement may wait."""


@contextmanager
def bounded(connection: Connection) -> Iterator[None]:
    """Bound each wait for a lock inside to one second, and raise Blocked when it is over; keep PostgreSQL to its indexes. Costs one round trip.

    SQLite has one lock, taken at BEGIN, and plans nothing ahead.
    """
    before, after = _SETTINGS.get(connection.dialect.name, ("", ""))
    try:
        if before:
            connection.exec_driver_sql(before)
        yield
    except DBAPIError as error:
        if _codes(error) & _TIMEOUTS:
            raise Blocked from error
        raise
    finally:
        if after:
            with suppress(SQLAlchemyError):  # a connection that is gone has nothing to restore
                connection.exec_driver_sql(after)


def _codes(error: DBAPIError) -> set[object]:
    """What the server called it: an SQLSTATE, a number, or both."""
    original = error.orig
    return {getattr(original, "sqlstate", None), *(original.args[:1] if original is not None else ())}
