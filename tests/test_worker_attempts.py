"""What a handler may do to its own attempt, to its session and to its process: nothing is lost, and nothing of a lost attempt stays."""

from __future__ import annotations

import asyncio
import functools
import gc
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, text, update

from postroom.adapters.connect import connect
from postroom.adapters.errors import LeaseLost
from postroom.adapters.sql import engine as engine_module
from postroom.adapters.sql.engine import open_engine
from postroom.adapters.sql.twin import open_twin
from postroom.consumers import AsyncContext, Context
from postroom.consumers.ledger.tables import ledger
from postroom.consumers.policy import readable
from postroom.consumers.worker import alone, lanes
from support.inprocess import SOON, Office, effect, effects, office, working
from support.workers import eventually

# A handler that hangs past its time keeps its connection until its process ends; here the process goes on, and its garbage is collected.
pytestmark = pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning")


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Office]:
    url = f"sqlite:///{tmp_path}/postroom.db"
    with office(url, connect(url)) as made:
        yield made


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def anywhere(request: pytest.FixtureRequest) -> Iterator[Office]:
    url = request.getfixturevalue(f"{request.param}_database_url")
    with office(url, connect(url)) as made:
        yield made


class _Object:
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    async def __call__(self, payload: Any, context: AsyncContext) -> None:
        await self._function(payload, context)


def _decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*given: Any) -> Any:
        return function(*given)

    return wrapper


@pytest.mark.parametrize("wrap", [_Object, _decorated, functools.partial, lambda it: _decorated(functools.partial(it))])
def test_an_async_handler_is_seen_through_what_is_wrapped_around_it(here: Office, wrap: Callable[..., Any]) -> None:
    async def handle(payload: Any, context: AsyncContext) -> None:
        await asyncio.sleep(0)
        await context.session.execute(effect(context.job.key))

    here.jobs.handler("t", queue="q", max_attempts=1)(wrap(handle))
    here.enqueue("t", "k")
    assert here.drain().counts == {"done": 1}
    assert here.effects() == ["k"]


def test_what_a_plain_function_returns_is_awaited_before_the_job_is_done(here: Office) -> None:
    ran: list[str] = []

    async def body(key: str) -> None:
        await asyncio.sleep(0)
        if key == "bad":
            raise ValueError("not today")
        ran.append(key)

    @here.jobs.handler("t", queue="q", max_attempts=1)
    def handle(payload: Any, context: Context) -> Any:
        return body(context.job.key)

    @here.jobs.handler("bare", queue="q", max_attempts=1)
    def bare(payload: Any) -> Any:
        return body("bare")

    for type_, key in (("t", "good"), ("t", "bad"), ("bare", "bare")):
        here.enqueue(type_, key)
    assert here.drain().counts == {"done": 2, "dead": 1}
    assert sorted(ran) == ["bare", "good"]
    assert here.entry("bad").last_error == "ValueError: not today"


def test_a_handler_that_returns_a_generator_has_failed(here: Office) -> None:
    def body() -> Iterator[None]:
        yield

    @here.jobs.handler("t", queue="q", max_attempts=1)
    def handle(payload: Any) -> Any:
        return body()

    here.enqueue("t", "k")
    assert here.drain().counts == {"dead": 1}
    assert "returned a generator" in here.entry("k").last_error


@pytest.mark.parametrize("leave", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["the handler", "a task of it"])
def test_an_async_handler_that_exits_has_failed_and_the_others_go_on(here: Office, leave: type[BaseException], where: str) -> None:
    async def go() -> None:
        raise leave(3)

    @here.jobs.handler("exit", queue="q", max_attempts=1)
    async def exits(payload: Any) -> None:
        await (go() if where == "the handler" else asyncio.create_task(go()))

    @here.jobs.handler("stop", queue="q", max_attempts=1)
    async def stops(payload: Any) -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)

    @here.jobs.handler("fine", queue="q", max_attempts=1)
    async def fine(payload: Any) -> None:
        await asyncio.sleep(0.01)

    for number in range(3):
        here.enqueue("exit", f"exit-{number}")
        here.enqueue("stop", f"stop-{number}")
        here.enqueue("fine", f"fine-{number}")
    assert here.drain(concurrency=2).counts == {"dead": 3, "done": 6}
    assert here.entry("exit-0").last_error.startswith(leave.__name__)


@pytest.mark.parametrize("ended_by", ["its timeout", "another holder"])
def test_an_attempt_that_is_cut_short_has_no_transaction_any_more(anywhere: Office, ended_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "STARVED", 0.1)  # the next attempt would wait for the one that hangs, to be alone
    here, go_on, inside, said = anywhere, threading.Event(), threading.Event(), list[str]()

    @here.jobs.handler("t", queue="q", timeout=0.5 if ended_by == "its timeout" else None, max_attempts=20, backoff=SOON)
    def handle(payload: Any, context: Context) -> None:
        if inside.is_set():  # on a slow machine it is not always the first attempt that comes so far
            return
        session = context.session
        session.execute(effect("of the first"))
        inside.set()
        assert go_on.wait(60)
        for use in (
            lambda: session.execute(effect("late")),
            lambda: (session.rollback(), session.execute(effect("later"))),
            lambda: context.session,
            lambda: context.enqueue("t", {}),
        ):
            try:
                use()
            except Exception as error:  # noqa: BLE001 - whichever it is, is the answer
                said.append(type(error).__name__)

    here.enqueue("t", "k")
    with working(here.worker(lease=0.9)):
        assert inside.wait(60)
        if ended_by == "another holder" and here.engine.dialect.name != "sqlite":  # there nobody can, while the session holds the write lock
            with here.engine.begin() as connection:
                connection.execute(update(ledger).values(fence=ledger.c.fence + 1, lease_until=1.0))
        elif ended_by == "another holder":
            go_on.set()
            return
        eventually(lambda: here.entry("k").status == "done")
        with here.engine.begin() as connection:
            connection.execute(insert(effects).values(key="somebody else's"))
        go_on.set()
        eventually(lambda: len(said) == 4)
    assert said[1:] == ["LeaseLost"] * 3
    assert here.effects() == ["somebody else's"]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_an_async_attempt_that_does_not_mind_being_cancelled_has_no_transaction_any_more(request: pytest.FixtureRequest, kind: str) -> None:
    url = request.getfixturevalue(f"{kind}_database_url")
    inside, go_on, said = threading.Event(), threading.Event(), list[str]()
    with office(url, connect(url)) as here:

        @here.jobs.handler("t", queue="q", timeout=0.5, max_attempts=20, backoff=SOON)
        async def handle(payload: Any, context: AsyncContext) -> None:
            if inside.is_set():
                return
            await context.session.execute(effect("of the first"))
            inside.set()
            while not go_on.is_set():
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.02)
            try:
                await context.session.execute(effect("late"))
            except Exception as error:  # noqa: BLE001 - whichever it is, is the answer
                said.append(type(error).__name__)

        here.enqueue("t", "k")
        with working(here.worker()):
            eventually(lambda: [entry.status for entry in here.entries()] == ["done"])
            go_on.set()
            eventually(lambda: said)
        assert here.effects() == []


def test_a_session_that_was_asked_for_in_time_is_of_no_use_when_it_is_late(here: Office) -> None:
    go_on, said = threading.Event(), list[Exception]()

    @here.jobs.handler("t", queue="q", timeout=0.2, max_attempts=1)
    def handle(payload: Any, context: Context) -> None:
        session = context.session
        assert go_on.wait(60)
        try:
            session.execute(effect("late"))
        except LeaseLost as error:
            said.append(error)

    here.enqueue("t", "k")
    with working(here.worker()):
        eventually(lambda: [entry.status for entry in here.entries()] == ["failed"])
        go_on.set()
        eventually(lambda: said)
    assert here.effects() == []


def test_a_session_that_waits_for_a_lock_is_let_off_when_its_attempt_is_over(postgresql_database_url: str) -> None:
    with office(postgresql_database_url, connect(postgresql_database_url)) as here:
        ended = threading.Event()

        @here.jobs.handler("t", queue="q", timeout=0.5, max_attempts=1)
        def handle(payload: Any, context: Context) -> None:
            try:
                context.session.execute(text("SELECT pg_sleep(3600)"))
            finally:
                ended.set()

        here.enqueue("t", "k")
        with working(here.worker()):
            assert ended.wait(60)
    assert here.entry("k").last_error == "timed out after 0.5 s"


@pytest.mark.parametrize(
    "commit",
    [
        lambda session: session.connection().commit(),
        lambda session: session.execute(text("COMMIT")),
        lambda session: session.execute(text("-- quietly\n commit")),
        lambda session: session.execute(text("ROLLBACK")),
        lambda session: session.connection().get_transaction().commit(),
    ],
)
def test_a_handler_can_not_end_its_transaction_behind_the_sessions_back(anywhere: Office, commit: Callable[[Any], object]) -> None:
    here = anywhere

    @here.jobs.handler("t", queue="q", max_attempts=1)
    def handle(payload: Any, context: Context) -> None:
        context.session.execute(effect("committed"))
        commit(context.session)

    here.enqueue("t", "k")
    assert here.drain().counts == {"dead": 1}
    assert here.effects() == []
    assert "the handler committed its session" in here.entry("k").last_error


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_handler_that_commits_with_the_drivers_own_means_is_not_done(request: pytest.FixtureRequest, kind: str) -> None:
    url = request.getfixturevalue(f"{kind}_database_url")
    with office(url, connect(url)) as here:

        @here.jobs.handler("t", queue="q", max_attempts=1)
        def handle(payload: Any, context: Context) -> None:
            context.session.execute(effect("committed"))
            context.session.connection().connection.driver_connection.commit()

        here.enqueue("t", "k")
        assert here.drain().counts == {"dead": 1}
        assert "the handler committed its session" in here.entry("k").last_error


def test_an_attempt_whose_session_finds_the_database_locked_is_handed_back_uncharged(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/postroom.db"
    inside, attempts = threading.Event(), list[int]()
    with office(f"{url}?timeout=0.2", connect(url)) as here:

        @here.jobs.handler("t", queue="q", max_attempts=1)
        def handle(payload: Any, context: Context) -> None:
            attempts.append(context.job.attempt)
            if len(attempts) == 1:
                blocker = sqlite3.connect(tmp_path / "postroom.db", isolation_level=None, check_same_thread=False)
                blocker.execute("BEGIN IMMEDIATE")
                inside.set()
                try:
                    context.session.execute(effect("k"))
                finally:
                    blocker.close()
            context.session.execute(effect("k"))

        here.enqueue("t", "k")
        assert here.drain().counts == {"released": 1, "done": 1}
        assert (here.entry("k").attempts, attempts, here.effects()) == (0, [1, 1], ["k"])


class _Unspeakable(BaseException):
    def __str__(self) -> str:
        raise SystemExit("not even this")


def test_an_error_that_can_not_be_told_has_a_text_all_the_same(here: Office) -> None:
    assert readable(_Unspeakable()) == "_Unspeakable: (its text can't be shown: SystemExit)"

    @here.jobs.handler("t", queue="q", max_attempts=1)
    def handle(payload: Any) -> None:
        raise _Unspeakable

    here.enqueue("t", "k")
    assert here.drain(concurrency=1).counts == {"dead": 1}


def test_a_lane_that_breaks_down_ends_the_worker(here: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(self: lanes.Lane) -> None:
        raise SystemExit

    @here.jobs.handler("t", queue="q")
    def handle(payload: Any) -> None: ...

    monkeypatch.setattr(lanes.Lane, "run", break_down)
    with pytest.raises(Exception, match="broke down"):
        here.drain()


def test_a_timed_out_attempt_does_not_count_as_running_any_more(here: Office) -> None:
    go_on = threading.Event()

    @here.jobs.handler("t", queue="q", timeout=0.2, max_attempts=1)
    def handle(payload: Any) -> None:
        assert go_on.wait(60)

    here.enqueue("t", "k")
    worker = here.worker()
    with working(worker):
        eventually(lambda: [entry.status for entry in here.entries()] == ["failed"])
        marks = worker._plan.marks.read()  # noqa: SLF001 - what a supervisor would read
        go_on.set()
    assert set(marks.values()) == {"ended"}


def test_async_sessions_are_opened_with_the_same_care(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/x.db")
    with engine.connect():
        pass

    async def look() -> tuple[Any, ...]:
        twin = open_twin(engine, "aiosqlite", pool_size=7)
        async with twin.connect() as connection:
            asked = [(await connection.exec_driver_sql(f"PRAGMA {name}")).scalar() for name in ("synchronous", "journal_mode", "busy_timeout")]
        size = twin.sync_engine.pool.size()
        await twin.dispose()
        return (*asked, size, engine_module.is_prepared(connection.sync_connection)) if connection.sync_connection else (*asked, size)

    assert asyncio.run(look())[:4] == (2, "wal", 30000, 7)
    engine.dispose()
