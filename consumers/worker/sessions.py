"""Sessions on the ledger's database, for handlers whose effects commit together with `done`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from sqlalchemy import event
from sqlalchemy.orm import Session

from postroom.adapters.errors import IllegalTransition, MissingExtra, Unavailable
from postroom.adapters.sql.transaction import translation
from postroom.adapters.sql.twin import open_twin

from .line import Line, supervise

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

__all__ = ["AttemptSession", "Sessions", "commit"]

_ASYNC_DRIVERS = {"sqlite": "aiosqlite", "postgresql": "psycopg", "mysql": "aiomysql", "mariadb": "aiomysql"}
_REMEDIES = {"aiosqlite": "'postroom[async]'", "psycopg": "'postroom[async,postgresql]'", "aiomysql": "'postroom[async]' aiomysql"}
_LINE = "postroom_line"
_DEEP = 10  # causes may go round in a circle


class AttemptSession(Session):
    """A handler's session. It refuses to commit (savepoints are fine): the worker commits, together with `done`, when the handler has returned."""


@event.listens_for(AttemptSession, "before_commit")
def _refuse(session: Session) -> None:
    if not (_line_of(session).may_commit or session.in_nested_transaction()):
        raise IllegalTransition("the worker commits context.session, together with `done`, when the handler returns; or use a session of your own")


@event.listens_for(AttemptSession, "after_begin")
def _hold(session: Session, _transaction: object, connection: Connection) -> None:
    _line_of(session).hold(connection)


def commit(session: Session) -> None:
    """Commit a handler's session: the worker's right alone."""
    _line_of(session).may_commit = True
    session.commit()


def _line_of(session: Session) -> Line:
    line: Line = session.info[_LINE]
    return line


class Sessions:
    """Opens them. Each belongs to one attempt, which closes it."""

    def __init__(self, engine: Engine, *, size: int) -> None:
        self._engine = engine
        self._size = size
        self._async_engine: AsyncEngine | None = None
        self.missing: MissingExtra | None = None
        """Raised by `open_async`, each time since the first, where the database's async driver is not installed."""
        supervise(engine)

    def open(self, line: Line) -> Session:
        """For a sync handler; whoever has its `line` can cut it off."""
        return AttemptSession(self._engine, info={_LINE: line})

    def open_async(self, line: Line) -> AsyncSession:
        """For an `async def` handler, on the event loop's thread. Raises MissingExtra when the database's async driver is not installed."""
        if self._async_engine is None:
            self._async_engine = self._connect()
        from sqlalchemy.ext.asyncio import AsyncSession  # noqa: PLC0415 - an extra

        return AsyncSession(self._async_engine, sync_session_class=AttemptSession, expire_on_commit=False, info={_LINE: line})

    def unavailable(self, error: BaseException, line: Line) -> Unavailable | None:
        """Return what an attempt's `error` says about the database if its session could not even be opened: its handler can't help it."""
        cause: BaseException | None = error
        for _ in range(_DEEP):
            if cause is None or line.opened:
                break
            told = translation(cause, self._engine)
            if isinstance(told, Unavailable):
                return told
            cause = cause.__cause__ or cause.__context__
        return None

    async def close(self) -> None:
        """Close the async connections; on the event loop's thread."""
        if self._async_engine is not None:
            await self._async_engine.dispose()

    def _connect(self) -> AsyncEngine:
        driver = _ASYNC_DRIVERS[self._engine.url.get_backend_name()]
        self._require("greenlet", driver)  # SQLAlchemy would miss greenlet only when something is awaited
        engine = open_twin(self._engine, driver, pool_size=self._size)
        supervise(engine.sync_engine)
        return engine

    def _require(self, *modules: str) -> None:
        for module in modules:
            try:
                importlib.import_module(module)
            except ImportError:
                self.missing = self.missing or MissingExtra(f"an async handler's session needs {module}: pip install {_REMEDIES[modules[-1]]}")
                raise self.missing from None
