"""What a handler may do: its session, the jobs that it enqueues, and how it may end."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from postroom.adapters.errors import InvalidMessage, MissingExtra
from postroom.consumers import AsyncContext, Context
from support.inprocess import SOON, Office, effect


def test_effects_outgoing_jobs_and_done_are_one_transaction(here: Office) -> None:
    @here.jobs.handler("parent", queue="q", backoff=SOON)
    def parent(payload: Any, context: Context) -> None:
        context.session.execute(effect(f"parent {context.job.attempt}"))
        context.enqueue("child", {"of": context.job.attempt}, key=f"child-{context.job.attempt}")
        if context.job.attempt == 1:
            raise ValueError("after the effect")

    @here.jobs.handler("child", queue="q")
    def child(payload: dict[str, int], context: Context) -> None:
        context.session.execute(effect(f"child of {payload['of']}"))

    here.enqueue("parent", "p")
    here.drain()
    assert here.effects() == ["parent 2", "child of 2"]


def test_a_job_enqueued_without_a_session_exists_if_and_only_if_the_attempt_is_done(here: Office) -> None:
    children: list[str] = []

    @here.jobs.handler("parent", queue="q", backoff=SOON)
    def parent(payload: Any, context: Context) -> None:
        context.enqueue("child", {}, key=f"child-{context.job.attempt}")
        if context.job.attempt == 1:
            raise ValueError("after the enqueue")

    @here.jobs.handler("child", queue="q")
    async def child(payload: Any, context: AsyncContext) -> None:
        children.append(context.job.key)

    here.enqueue("parent", "p")
    here.drain()
    assert children == ["child-2"]


def test_a_job_whose_queue_no_handler_tells_is_refused_when_it_is_enqueued(here: Office) -> None:
    told: list[str] = []

    @here.jobs.handler("parent", queue="q")
    def parent(payload: Any, context: Context) -> None:
        with pytest.raises(InvalidMessage) as refused:
            context.enqueue("unheard-of", {})
        told.append(str(refused.value))
        context.enqueue("unheard-of", {}, queue="elsewhere")

    here.enqueue("parent", "p")
    here.drain()
    assert told == ["type: 'unheard-of' has no handler here that would tell its queue; name one: enqueue(..., queue=...)"]
    assert here.entry("p").status == "done"


@pytest.mark.parametrize("module", ["aiosqlite", "greenlet"])
def test_without_the_async_extra_a_handler_that_asks_for_a_session_ends_the_worker_and_is_not_charged(
    here: Office, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    runs: list[str] = []

    @here.jobs.handler("t", queue="q")
    async def handle(payload: Any, context: AsyncContext) -> None:
        runs.append(context.job.key)
        await context.session.execute(effect("never"))

    @here.jobs.handler("without", queue="q")
    async def without(payload: Any, context: AsyncContext) -> None:
        runs.append(context.job.key)

    monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    here.enqueue("without", "fine")
    here.drain()
    here.enqueue("t", "k")
    with pytest.raises(MissingExtra) as missing:
        here.drain()
    assert str(missing.value) == f"an async handler's session needs {module}: pip install 'postroom[async]'"
    assert (here.entry("k").status, here.entry("k").attempts) == ("pending", 0)
    assert here.entry("fine").status == "done"
    assert {"fine", "k"} == set(runs)


def test_an_async_handlers_session_commits_with_done_or_not_at_all(here: Office) -> None:
    @here.jobs.handler("t", queue="q", backoff=SOON)
    async def handle(payload: Any, context: AsyncContext) -> None:
        await context.session.execute(effect(f"attempt {context.job.attempt}"))
        if context.job.attempt == 1:
            raise ValueError("after the effect")

    here.enqueue("t", "k")
    here.drain()
    assert here.effects() == ["attempt 2"]
    assert here.entry("k").status == "done"


@pytest.mark.parametrize("way", ["commit", "begin"])
def test_a_handler_can_not_commit_its_session_itself_but_may_use_savepoints(here: Office, way: str) -> None:
    @here.jobs.handler("t", queue="q", max_attempts=1)
    def handle(payload: Any, context: Context) -> None:
        with context.session.begin_nested():
            context.session.execute(effect("inside a savepoint"))
        if way == "commit":
            context.session.commit()
        context.session.get_transaction().commit()

    @here.jobs.handler("good", queue="q")
    def good(payload: Any, context: Context) -> None:
        with context.session.begin_nested():
            context.session.execute(effect("good"))

    here.enqueue("t", "k")
    here.enqueue("good", "g")
    here.drain()
    assert here.effects() == ["good"]
    assert here.entry("k").status == "failed"
    assert "the worker commits context.session" in here.entry("k").last_error


def test_a_handler_that_exits_has_failed_and_its_lane_goes_on(here: Office) -> None:
    @here.jobs.handler("t", queue="q", max_attempts=1)
    def handle(payload: Any, context: Context) -> None:
        if context.job.key == "exit":
            raise SystemExit(3)

    here.enqueue("t", "exit")
    here.enqueue("t", "other")
    assert here.drain(concurrency=1).counts == {"dead": 1, "done": 1}
