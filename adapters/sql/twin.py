"""The async twin of an engine: the same database through an async driver, with the same care."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import event

from .connecting import patience_of
from .engine import prepare

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["open_twin"]

_FIRST_WORDS = {"sqlite": "PRAGMA synchronous=FULL", "postgresql": "SET jit = off"}
"""What `open_engine` says to each new connection. (WAL mode is the file's.)"""


def open_twin(engine: Engine, driver: str, *, pool_size: int) -> AsyncEngine:
    """Return an AsyncEngine on the database of `engine`, not yet connected, with room for `pool_size` connections and as many again.

    `driver` is SQLAlchemy's name of an async driver that is installed. On the event loop's thread.
    """
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415 - an extra

    backend = engine.url.get_backend_name()
    target = engine.url.set(drivername=f"{backend}+{driver}")
    careful: dict[str, Any] = {} if backend == "sqlite" else {"isolation_level": "READ COMMITTED", "pool_pre_ping": True}
    twin = create_async_engine(target, connect_args=patience_of(target), pool_size=pool_size, max_overflow=pool_size, **careful)
    if backend in _FIRST_WORDS:
        event.listen(twin.sync_engine, "connect", _greet(_FIRST_WORDS[backend]))
    return prepare(twin)


def _greet(statement: str) -> Any:  # noqa: ANN401 - SQLAlchemy's hook
    def greet(dbapi_connection: Any, _record: object) -> None:  # noqa: ANN401 - the driver's own connection
        cursor = dbapi_connection.cursor()
        cursor.execute(statement)
        cursor.close()
        dbapi_connection.commit()

    return greet
