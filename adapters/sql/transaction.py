"""One transaction, done whole: begun again when the database chose it as a deadlock's victim, its errors told in Postroom's words."""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from postroom.adapters.errors import AccessDenied, SchemaDrift, Unavailable
from postroom.adapters.urls import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection, Engine

__all__ = ["transact", "translated"]

Result = TypeVar("Result")

TRIES = 8
_DEADLOCKS = {1213, 1205, "40001", "40P01"}  # MySQL's deadlock and lock wait, SQL's serialization failure and PostgreSQL's deadlock
_DENIED = {1044, 1045, 1698, "28000", "28P01", "42501"}
_MISSING = {1054, 1146, "42P01", "42703"}


def transact(engine: Engine, work: Callable[[Connection], Result]) -> Result:
    """Run `work` in a transaction of its own and commit; run it again, up to 8 times within about 2 s, after a deadlock.

    `work` must have no effect but on its connection. Raises Unavailable, AccessDenied or SchemaDrift.
    """
    with translated(engine):
        for attempt in range(TRIES):
            try:
                with engine.begin() as connection:
                    return work(connection)
            except DBAPIError as error:
                if attempt == TRIES - 1 or not _is_deadlock(error):
                    raise
                time.sleep(random.uniform(0, 0.005 * 2**attempt))  # noqa: S311 - to part two victims, not to keep a secret
        raise AssertionError  # the last try returned or raised


@contextmanager
def translated(engine: Engine) -> Iterator[None]:
    """Turn what a driver raises inside into one line of Postroom's error tree."""
    try:
        yield
    except (DBAPIError, PoolTimeout) as error:
        raise _translate(error, engine) from error


def _code(error: DBAPIError) -> int | str | None:
    """The server's own code: an SQLSTATE from PostgreSQL, a number from MySQL, nothing from SQLite."""
    original = error.orig
    state: str | None = getattr(original, "sqlstate", None)
    first = original.args[0] if original is not None and original.args else None
    return state or (first if isinstance(first, int) else None)


def _is_deadlock(error: DBAPIError) -> bool:
    return _code(error) in _DEADLOCKS or "database is locked" in str(error.orig)


def _translate(error: DBAPIError | PoolTimeout, engine: Engine) -> Exception:
    where = engine.url.render_as_string(hide_password=True)
    if isinstance(error, PoolTimeout):
        return Unavailable(f"{where}: every connection of the pool is busy")
    said = redact(str(error.orig).strip().partition("\n")[0])
    if _code(error) in _MISSING or "no such table" in said or "no such column" in said:
        return SchemaDrift(f"{where}: {said}; run `postroom schema create` (or `postroom schema check` to see what differs)")
    return _unreachable(error, where, said)


def _unreachable(error: DBAPIError, where: str, said: str) -> Exception:
    if _code(error) in _DENIED or "authentication failed" in said:
        return AccessDenied(f"{where}: {said}; check the user, the password and the database's name")
    if isinstance(error, OperationalError) or error.connection_invalidated:
        return Unavailable(f"{where}: {said}")
    return error
