"""Sessions on the ledger's database, for handlers whose effects commit together with `done`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import event
from sqlalchemy.orm import Session

from postroom.adapters.errors import IllegalTransition, MissingExtra
from postroom.adapters.sql.engine import prepare

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

__all__ = ["AttemptSession", "Sessions", "commit"]

_ASYNC_DRIVERS = {"sqlite": "aiosqlite", "postgresql": "psycopg", "mysql": "aiomysql", "mariadb": "aiomysql"}
_MAY_COMMIT = "postroom_may_commit"


class AttemptSession(Session):
    """A handler's session. It refuses to commit (savepoints are fine): the worker commits, together with `done`, when the handler has returned."""


@event.listens_for(AttemptSession, "before_commit")
def _refuse(session: Session) -> None:
    if not (session.info.get(_MAY_COMMIT) or session.in_nested_transaction()):
        raise IllegalTransition("the worker commits context.session, together with `done`, when the handler returns; or use a session of your own")


def commit(session: Session) -> None:
    """Commit a handler's session: the worker's right alone."""
    session.info[_MAY_COMMIT] = True
    session.commit()


class Sessions:
    """Opens them. Each belongs to one attempt, which closes it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._async_engine: AsyncEngine | None = None

    def open(self) -> Session:
        """For a sync handler."""
        return AttemptSession(self._engine)

    def open_async(self) -> AsyncSession:
        """For an `async def` handler, on the event loop's thread. Raises MissingExtra when the database's async driver is not installed."""
        from sqlalchemy.ext.asyncio import AsyncSession  # noqa: PLC0415 - an extra

        if self._async_engine is None:
            self._async_engine = self._connect()
        return AsyncSession(self._async_engine, sync_session_class=AttemptSession, expire_on_commit=False)

    async def close(self) -> None:
        """Close the async connections; on the event loop's thread."""
        if self._async_engine is not None:
            await self._async_engine.dispose()

    def _connect(self) -> AsyncEngine:
        from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415 - an extra

        url = self._engine.url
        driver = _ASYNC_DRIVERS[url.get_backend_name()]
        try:
            engine = create_async_engine(url.set(drivername=f"{url.get_backend_name()}+{driver}"))
        except ImportError as error:
            raise MissingExtra(f"an async handler's session needs {driver}: pip install 'postroom[async]' {driver}") from error
        prepare(engine.sync_engine)
        return engine
