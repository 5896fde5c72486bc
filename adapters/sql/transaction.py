"""One transaction, done whole: begun again when the database chose it as a deadlock's victim, its errors told in Postroom's words."""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy.exc import DatabaseError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from postroom.adapters.errors import AccessDenied, SchemaDrift, Unavailable
from postroom.adapters.urls import redact

from .engine import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection, Engine

__all__ = ["transact", "translated", "translation"]

Result = TypeVar("Result")

TRIES = 8
PATIENCE = 30.0
"""Nothing is tried again after this many seconds."""

# Numbers are MySQL's and MariaDB's, five characters are SQLSTATEs of PostgreSQL.
_DEADLOCKS = {1020, 1205, 1213, 3572, "40001", "40P01"}  # 1020: MariaDB's snapshot isolation met a row that has just been changed
_DENIED = {1044, 1045, 1698, "28000", "28P01"}
_NO_RIGHT = {1142, 1143, 1227, "42501"}
_MISSING = {1054, 1146, "42P01", "42703", "3F000"}
_READ_ONLY = {1290, 1792, 1836, "25006"}  # the server that we reached is a standby now
_ABOUT_A_VALUE = {1264, 1265, 1366, 1644, 1690, 3819, 4025}  # PyMySQL calls these operational too
_REMEDIES = {
    "does not exist": "; create the database first",
    "Unknown database": "; create the database first",
    "unable to open database file": "; does its directory exist, and may this user write there?",
}


def transact(engine: Engine, work: Callable[[Connection], Result], *, sleep: Callable[[float], object] = time.sleep) -> Result:
    """Run `work` in a transaction of its own and commit; run it again, up to 8 times within about 2 s, after a deadlock.

    `work` must have no effect but on its connection. Raises Unavailable, AccessDenied or SchemaDrift; what else the database refuses
    (a value, a constraint) stays a DBAPIError.
    """
    began = time.monotonic()
    with translated(engine):
        for attempt in range(TRIES):
            try:
                with engine.begin() as connection:
                    return work(connection)
            except DBAPIError as error:
                if attempt == TRIES - 1 or time.monotonic() - began > PATIENCE or not _is_deadlock(error):
                    raise
                sleep(random.uniform(0, 0.005 * 2**attempt))  # noqa: S311 - to part two victims, not to keep a secret
        raise AssertionError  # the last try returned or raised


@contextmanager
def translated(engine: Engine) -> Iterator[None]:
    """Turn what a driver raises inside into one line of Postroom's error tree."""
    try:
        yield
    except (DBAPIError, PoolTimeout) as error:
        told = _translate(error, engine)
        if told is error:
            raise
        raise told from error


def translation(error: BaseException, engine: Engine) -> BaseException:
    """Return what `translated` makes of an error: itself, unless a driver or the pool has raised it."""
    return _translate(error, engine) if isinstance(error, DBAPIError | PoolTimeout) else error


def _code(error: DBAPIError) -> int | str | None:
    """The server's own code: a number from MySQL, whose SQLSTATEs (PyMySQL has both) say less; an SQLSTATE from PostgreSQL; nothing from SQLite."""
    original = error.orig
    first = original.args[0] if original is not None and original.args else None
    state: str | None = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    return first if isinstance(first, int) else state


def _is_deadlock(error: DBAPIError) -> bool:
    return _code(error) in _DEADLOCKS or "database is locked" in str(error.orig)


def _translate(error: DBAPIError | PoolTimeout, engine: Engine) -> Exception:
    where = shown(engine)
    if isinstance(error, PoolTimeout):
        return Unavailable(f"{where}: every connection of the pool is busy")
    said = _in_one_line(error)
    if _code(error) in _MISSING or "no such table" in said or "no such column" in said:
        return SchemaDrift(f"{where}: {said}; run `postroom schema create` (or `postroom schema check` to see what differs)")
    if _code(error) in _NO_RIGHT:
        return AccessDenied(f"{where}: {said}; the user may log in and lacks a right: GRANT it")
    if _code(error) in _DENIED or "authentication failed" in said:
        return AccessDenied(f"{where}: {said}; check the user, the password and the database's name")
    remedy = next((remedy for sign, remedy in _REMEDIES.items() if sign in said), "")
    return Unavailable(f"{where}: {said}{remedy}") if _is_unavailable(error) else error


def _in_one_line(error: DBAPIError) -> str:
    """What the driver said, without hints and secrets: psycopg gives a line to each address it tried, MySQL's give a code and a text."""
    original = error.orig
    arguments = original.args if original is not None else ()
    text = str(arguments[1]) if len(arguments) > 1 and isinstance(arguments[0], int) else str(original)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    failures = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    return redact((failures or lines or [type(original).__name__])[0])


def _is_unavailable(error: DBAPIError) -> bool:
    """No answer, or one that says nothing about the statement. A plain DatabaseError is SQLite's for a file that is none of its own."""
    if error.connection_invalidated or _code(error) in _READ_ONLY:
        return True
    return (isinstance(error, OperationalError | InterfaceError) and _code(error) not in _ABOUT_A_VALUE) or type(error) is DatabaseError
