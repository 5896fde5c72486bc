"""Runs handlers: one attempt from its payload to a finish."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, TypeAlias

from postroom.adapters.errors import LeaseLost
from postroom.adapters.seam import Queue
from postroom.consumers.context import Context, Job
from postroom.consumers.ledger.answers import Done, Finished, Lost
from postroom.outbox.outbox import Outbox

from .failure import failure
from .loop import LoopThread
from .sessions import Sessions, commit

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine
    from sqlalchemy.orm import Session

    from postroom.consumers.jobs import Jobs
    from postroom.consumers.ledger import Ledger
    from postroom.consumers.ledger.answers import Finish, Result
    from postroom.outbox.rows import NewRow

    from .work import Work

__all__ = ["Attempts", "Outcome"]

Outcome: TypeAlias = "tuple[Finish, Result | None]"
"""How an attempt ended, and the ledger's result where it is stored already: a handler that used its session has committed itself."""


class Attempts:
    """Any lane may run an attempt. What a handler raises never comes out of here."""

    def __init__(self, jobs: Jobs, engine: Engine, ledger: Ledger, clock: Callable[[], float] = time.monotonic) -> None:
        self._jobs = jobs
        self._ledger = ledger
        self._clock = clock
        self._sessions = Sessions(engine)
        self._loop = LoopThread()
        self._rng = random.Random()  # noqa: S311 - to spread retries
        self._outbox = Outbox(next(iter(jobs.queues.values())), queues=list(jobs.queues.values())[1:])

    def run(self, work: Work) -> Outcome:
        """Run the handler; blocks for as long as it takes."""
        try:
            return self._run_async(work) if work.handler.signature.is_async else self._run(work)
        except BaseException as error:  # noqa: BLE001 - also SystemExit and a cancelled task: a lane outlives its handlers
            return (Done(started=work.attempt), Lost()) if work.fenced else (failure(work, error, self._rng), None)

    def close(self) -> None:
        """Close the async connections and stop the event loop."""
        self._loop.close(self._sessions.close)

    def _run(self, work: Work) -> Outcome:
        handler = work.handler
        payload = handler.signature.convert(work.delivery.message.body)
        if not handler.signature.wants_context:
            handler.function(payload)
            return Done(started=work.attempt), None
        context = self._context(work, self._sessions.open)
        try:
            handler.function(payload, context)
            done = Done(started=work.attempt, outgoing=context.outgoing)
            return (done, self._commit(context.opened, done)) if context.opened else (done, None)
        finally:
            if context.opened:
                context.opened.close()

    def _run_async(self, work: Work) -> Outcome:
        future = self._loop.submit(self._handle(work))
        work.cancel = future.cancel
        return future.result()

    async def _handle(self, work: Work) -> Outcome:
        handler = work.handler
        payload = handler.signature.convert(work.delivery.message.body)
        context = self._context(work, self._sessions.open_async)
        try:
            await (handler.function(payload, context) if handler.signature.wants_context else handler.function(payload))
            done = Done(started=work.attempt, outgoing=context.outgoing)
            return (done, await context.opened.run_sync(self._commit, done)) if context.opened else (done, None)
        finally:
            if context.opened:
                await context.opened.close()

    def _commit(self, session: Session, done: Done) -> Result:
        """Effects, outgoing jobs and `done` in one transaction, or none of them when the attempt is not the holder any more."""
        session.flush()
        try:
            self._ledger.finish_within(session.connection(), done)
        except LeaseLost:
            return Lost()
        commit(session)
        return Finished()

    def _context(self, work: Work, open_session: Callable[[], Any]) -> Context:
        handler, envelope, attempt = work.handler, work.envelope, work.attempt
        job = Job(
            id=envelope.id,
            type=envelope.type,
            key=envelope.key,
            attempt=attempt.attempt,
            max_attempts=attempt.max_attempts,
            queue=work.delivery.queue,
            enqueued_at=envelope.enqueued_at,
            headers=envelope.headers,
        )

        def prepare(type: str, payload: object, *, queue: str | Queue | None, **options: Any) -> NewRow:  # noqa: A002, ANN401 - as Outbox.row
            return self._outbox.row(type, payload, queue=self._target(type, queue, handler.queue), **options)

        def guard() -> None:
            if work.fenced:
                raise LeaseLost(f"{work}: attempt {attempt.attempt} is no longer the holder; nothing it does is stored")

        return Context(
            job=job,
            idempotency_key=f"{handler.group}:{envelope.type}:{envelope.key}",
            deadline=handler.timeout and self._clock() + handler.timeout,
            open_session=open_session,
            prepare=prepare,
            guard=guard,
        )

    def _target(self, type: str, queue: str | Queue | None, own: Queue) -> Queue:  # noqa: A002 - as everywhere
        """Where a handler's job goes: a queue of these handlers by its name, or one of another service's."""
        if isinstance(queue, str):
            return self._jobs.queues.get(queue) or Queue(name=queue)
        return queue or self._jobs.queue_of(type) or own
