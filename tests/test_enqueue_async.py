"""Async sessions and connections: the same promises, with `await` before them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import make_url, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine

from postroom.adapters.errors import ConfigurationError, InvalidMessage, SchemaDrift
from postroom.adapters.sql.metadata import metadata
from postroom.outbox import Draft, Outbox, prepare
from postroom.outbox.tables import outbox

BOX = Outbox("emails")
DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}

Story = Callable[[AsyncEngine], Coroutine[None, None, None]]


@pytest.fixture(params=["sqlite", "postgresql"])
def play(request: pytest.FixtureRequest) -> Callable[[Story], None]:
    """Runs a coroutine function with an async engine on a database with tables."""
    url: str = request.getfixturevalue(f"{request.param}_database_url")
    return lambda story: asyncio.run(_play(url, story))


async def _play(url: str, story: Story) -> None:
    async with opened(url) as engine:
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        await story(engine)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[AsyncEngine]:
    parsed = make_url(url)
    engine = prepare(create_async_engine(parsed.set(drivername=DRIVERS[parsed.get_backend_name()])))
    yield engine
    await engine.dispose()


async def others_see(engine: AsyncEngine) -> list[bytes]:
    reading = engine.execution_options(postroom_reading=True)
    async with reading.connect() as connection:
        return list((await connection.execute(select(outbox.c.body).order_by(outbox.c.seq))).scalars())


def test_a_job_exists_when_the_async_session_commits(play: Callable[[Story], None]) -> None:
    async def story(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            job_id = await BOX.enqueue(session, "ping", {"n": 1}, key="k")
            assert await others_see(engine) == []
            await session.commit()
        assert await others_see(engine) == [b'{"n":1}']
        assert len(job_id) == 32

    play(story)


def test_a_job_exists_when_the_async_connection_commits(play: Callable[[Story], None]) -> None:
    async def story(engine: AsyncEngine) -> None:
        async with engine.begin() as connection:
            ids = await BOX.enqueue_many(connection, [Draft(type="ping", payload=number) for number in range(3)])
        assert await others_see(engine) == [b"0", b"1", b"2"]
        assert len(set(ids)) == 3

    play(story)


def test_s078_async_savepoints_keep_what_they_promise(play: Callable[[Story], None]) -> None:
    async def story(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            await BOX.enqueue(session, "ping", "A")
            inner = await session.begin_nested()
            await BOX.enqueue(session, "ping", "B")
            await inner.rollback()
            await session.commit()
        assert await others_see(engine) == [b'"A"']

    play(story)


def test_s075_an_async_savepoint_that_comes_first_can_not_commit_by_itself(play: Callable[[Story], None]) -> None:
    async def story(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            async with session.begin_nested():
                await BOX.enqueue(session, "ping", "phantom")
            await session.rollback()
        assert await others_see(engine) == []

    play(story)


def test_s075_an_unprepared_async_sqlite_engine_is_refused_inside_a_savepoint(sqlite_database_url: str) -> None:
    async def story() -> None:
        engine = create_async_engine(sqlite_database_url.replace("sqlite:", "sqlite+aiosqlite:"))
        async with AsyncSession(engine) as session, session.begin_nested():
            with pytest.raises(ConfigurationError, match="prepare"):
                await BOX.enqueue(session, "ping", "phantom")
        await engine.dispose()

    asyncio.run(story())


def test_s076_an_async_autocommit_connection_is_refused(play: Callable[[Story], None]) -> None:
    async def story(engine: AsyncEngine) -> None:
        async with engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
                await BOX.enqueue(connection, "ping", 1)
        assert await others_see(engine) == []

    play(story)


def test_an_async_scoped_session_is_a_session(play: Callable[[Story], None]) -> None:
    async def story(engine: AsyncEngine) -> None:
        session = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
        await BOX.enqueue(session, "ping", 1)
        await session.commit()
        await session.remove()
        assert await others_see(engine) == [b"1"]

    play(story)


def test_what_can_not_travel_is_refused_at_once_and_not_when_awaited(play: Callable[[Story], None]) -> None:
    async def story(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            with pytest.raises(InvalidMessage, match=r"^payload: NaN"):
                BOX.enqueue(session, "ping", float("nan"))

    play(story)


def test_a_job_that_nobody_awaits_is_told_by_python(play: Callable[[Story], None]) -> None:
    async def story(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            forgotten: Awaitable[str] | None = BOX.enqueue(session, "ping", 1)
            with pytest.warns(RuntimeWarning, match="never awaited"):
                del forgotten

    play(story)


def test_missing_tables_are_told_with_the_remedy(sqlite_database_url: str) -> None:
    async def story() -> None:
        async with opened(sqlite_database_url) as engine, AsyncSession(engine) as session:
            with pytest.raises(SchemaDrift, match="postroom schema create"):
                await BOX.enqueue(session, "ping", 1)

    asyncio.run(story())
