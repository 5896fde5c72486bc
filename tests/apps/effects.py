"""What handlers of the test applications did, seen from outside: a table that they write to, and flags that survive their process."""

import os
import signal
from pathlib import Path

from sqlalchemy import Column, Connection, Engine, Integer, MetaData, String, Table, insert

from postroom.adapters.sql.engine import open_engine

effects = Table(
    "effects",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("key", String(100), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("pid", Integer, nullable=False),
)


def database() -> Engine:
    """The database of the test."""
    return open_engine(os.environ["APP_DATABASE"])


def record(key: str, attempt: int) -> None:
    """An effect outside of the attempt's transaction, as an e-mail is: once done, it stays."""
    engine = database()
    with engine.begin() as connection:
        write(connection, key, attempt)
    engine.dispose()


def write(connection: Connection, key: str, attempt: int) -> None:
    """An effect in the caller's transaction."""
    connection.execute(insert(effects), {"key": key, "attempt": attempt, "pid": os.getpid()})


def first_time(name: str) -> bool:
    """Whether nobody asked so before, in this or any other process of the test."""
    try:
        flag(name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def flag(name: str) -> Path:
    """A file that a test and its processes tell each other things by."""
    return Path(os.environ["APP_FLAGS"]) / name


def die() -> None:
    """As if the machine had killed this process: no handler, no `finally`, no flush."""
    os.kill(os.getpid(), signal.SIGKILL)
