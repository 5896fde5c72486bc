"""Runs handlers: one attempt from its payload to a finish."""

from __future__ import annotations

import inspect
import logging
import random
import time
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from postroom.adapters.errors import InvalidMessage, LeaseLost
from postroom.adapters.seam import Queue
from postroom.consumers.context import AsyncContext, Context, Job
from postroom.consumers.ledger.answers import Done, Finished, Lost, Released
from postroom.outbox.outbox import Outbox

from .failure import failure
from .loop import LoopThread
from .sessions import Sessions, commit

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from sqlalchemy import Engine
    from sqlalchemy.orm import Session

    from postroom.adapters.errors import MissingExtra
    from postroom.consumers.jobs import Jobs
    from postroom.consumers.ledger import Ledger
    from postroom.consumers.ledger.answers import Finish, Result
    from postroom.outbox.rows import NewRow

    from .work import Work

__all__ = ["Attempts", "Outcome"]

_log = logging.getLogger("postroom.worker")

AnyContext = TypeVar("AnyContext", Context, AsyncContext)
Returned = TypeVar("Returned")

Outcome: TypeAlias = "tuple[Finish, Result | None]"
"""How an attempt ended, and the ledger's result where it is stored already: a handler that used its session has committed itself."""

AGAIN = 1.0
"""How long (seconds) an attempt stays away that was handed back because its session could not be opened."""


class Attempts:
    """Any lane may run an attempt. What a handler raises never comes out of here."""

    def __init__(
        self,
        jobs: Jobs,
        engine: Engine,
        ledger: Ledger,
        *,
        concurrency: int,
        broken: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs = jobs
        self._ledger = ledger
        self._clock = clock
        self._sessions = Sessions(engine, size=concurrency)
        self._loop = LoopThread(broken)
        self._rng = random.Random()  # noqa: S311 - to spread retries
        self._outbox = Outbox(next(iter(jobs.queues.values())), queues=list(jobs.queues.values())[1:])

    def run(self, work: Work) -> Outcome:
        """Run the handler; blocks for as long as it takes."""
        try:
            return self._run_async(work) if work.handler.signature.is_async else self._run(work)
        except BaseException as error:  # noqa: BLE001 - also SystemExit and a cancelled task: a lane outlives its handlers
            return self._ended(work, error)

    @property
    def missing(self) -> MissingExtra | None:
        """What is not installed here and a handler has asked for: its attempt was not charged, and this process can go on no longer."""
        return self._sessions.missing

    def close(self) -> None:
        """Close the async connections and stop the event loop."""
        self._loop.close(self._sessions.close)

    def _ended(self, work: Work, error: BaseException) -> Outcome:
        """What an attempt has come to whose handler didn't return."""
        if work.fenced:
            return Done(started=work.attempt), Lost()
        if error is self._sessions.missing:  # no attempt can help
            return Released(started=work.attempt), None
        if unavailable := self._sessions.unavailable(error, work.line):
            _log.warning("%s: attempt %d is handed back, its session can't be opened: %s", work, work.attempt.attempt, unavailable)
            return Released(started=work.attempt, delay=AGAIN), None
        return failure(work, error, self._rng), None

    def _run(self, work: Work) -> Outcome:
        handler = work.handler
        payload = handler.signature.convert(work.payload)
        if not handler.signature.wants_context:
            self._wait_for(work, handler.function(payload))
            return Done(started=work.attempt), None
        context = self._context(Context, work, lambda: self._sessions.open(work.line))
        try:
            self._wait_for(work, handler.function(payload, context))
            done = Done(started=work.attempt, outgoing=context.outgoing)
            return (done, self._commit(work, context.opened, done)) if context.opened else (done, None)
        finally:
            if context.opened:
                context.opened.invalidate() if work.line.is_cut else context.opened.close()

    def _run_async(self, work: Work) -> Outcome:
        """Only what is awaited runs on the loop: a decorator around an async function may be an ordinary one, that runs it by itself."""
        handler = work.handler
        payload = handler.signature.convert(work.payload)
        context = self._context(AsyncContext, work, lambda: self._sessions.open_async(work.line))
        returned = handler.function(payload, context) if handler.signature.wants_context else handler.function(payload)
        return self._on_loop(work, self._handle(work, context, returned))

    async def _handle(self, work: Work, context: AsyncContext, returned: object) -> Outcome:
        try:
            await _all_of(returned)
            done = Done(started=work.attempt, outgoing=context.outgoing)
            return (done, await context.opened.run_sync(lambda session: self._commit(work, session, done))) if context.opened else (done, None)
        finally:
            if context.opened:
                await (context.opened.invalidate() if work.line.is_cut else context.opened.close())

    def _wait_for(self, work: Work, returned: object) -> None:
        """A plain function may hide an async one: what it returns has not run before it is awaited."""
        if inspect.isawaitable(returned) or _is_generator(returned):
            self._on_loop(work, _all_of(returned))

    def _on_loop(self, work: Work, coroutine: Coroutine[Any, Any, Returned]) -> Returned:
        future = self._loop.submit(coroutine)
        work.cancel = future.cancel
        if work.fenced:  # before it could be cancelled
            future.cancel()
        return future.result()

    def _commit(self, work: Work, session: Session, done: Done) -> Result:
        """Effects, outgoing jobs and `done` in one transaction, or none of them when the attempt is not the holder any more."""
        session.flush()
        work.line.check()
        try:
            self._ledger.finish_within(session.connection(), done)
        except LeaseLost:
            return Lost()
        commit(session)
        return Finished()

    def _context(self, kind: type[AnyContext], work: Work, open_session: Callable[[], Any]) -> AnyContext:
        handler, envelope, attempt = work.handler, work.envelope, work.attempt
        job = Job(
            id=envelope.id,
            type=envelope.type,
            key=envelope.key,
            attempt=attempt.attempt,
            max_attempts=attempt.max_attempts,
            queue=work.delivery.queue,
            enqueued_at=envelope.enqueued_at,
            headers=work.headers,
        )

        def prepare(type: str, payload: object, *, queue: str | Queue | None, **options: Any) -> NewRow:  # noqa: A002, ANN401 - as Outbox.row
            return self._outbox.row(type, payload, queue=self._target(type, queue), **options)

        def guard() -> None:
            if work.fenced:
                raise LeaseLost(f"{work}: attempt {attempt.attempt} is no longer the holder; nothing it does is stored")

        return kind(
            job=job,
            idempotency_key=f"{handler.group}:{envelope.type}:{envelope.key}",
            deadline=handler.timeout and self._clock() + handler.timeout,
            open_session=open_session,
            prepare=prepare,
            guard=guard,
        )

    def _target(self, type: str, queue: str | Queue | None) -> Queue:  # noqa: A002 - as everywhere
        """Where a handler's job goes: a queue of these handlers by its name, or one of another service's."""
        if isinstance(queue, str):
            return self._jobs.queues.get(queue) or Queue(name=queue)
        if target := queue or self._jobs.queue_of(type):
            return target
        several = any(handler.type == type for handler in self._jobs.handlers)
        why = "has handlers here with several queues" if several else "has no handler here that would tell its queue"
        raise InvalidMessage(f"type: {type!r} {why}; name one: enqueue(..., queue=...)")


async def _all_of(returned: object) -> None:
    """Run what a handler has returned to the end. Raises TypeError for what nobody would run."""
    while inspect.isawaitable(returned):
        returned = await returned
    if _is_generator(returned):
        raise TypeError("the handler returned a generator, which nobody would run: return nothing, or be an `async def`")


def _is_generator(returned: object) -> bool:
    return inspect.isgenerator(returned) or inspect.isasyncgen(returned)
