"""What a handler may ask of the attempt that it runs in."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping, Sequence

    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

    from postroom.adapters.seam import Header, Queue
    from postroom.outbox.rows import NewRow

__all__ = ["AsyncContext", "Context", "Job"]

_logger = logging.getLogger("postroom.job")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job of this attempt, which counts from 1.

    `enqueued_at` is seconds since the epoch by the database's clock. `queue` is where it came from: of a topic, the group's own queue.
    """

    id: str
    type: str
    key: str
    attempt: int
    max_attempts: int
    queue: str
    enqueued_at: float
    headers: Mapping[str, Header]


class _Attempt:
    """One attempt of one job, as its handler sees it. For the handler's own thread (or task) alone, and only until it returns.

    `job` is the job. `idempotency_key` is the same at every attempt: pass it on to services that can recognise a repeated request.
    `deadline` is when the handler's timeout ends the attempt, by `time.monotonic()`; None without a timeout.
    """

    __slots__ = ("_guard", "_open", "_outgoing", "_prepare", "_session", "deadline", "idempotency_key", "job")

    def __init__(
        self,
        *,
        job: Job,
        idempotency_key: str,
        deadline: float | None,
        open_session: Callable[[], Any],
        prepare: Callable[..., NewRow],
        guard: Callable[[], None],
    ) -> None:
        self.job = job
        self.idempotency_key = idempotency_key
        self.deadline = deadline
        self._open = open_session
        self._prepare = prepare
        self._guard = guard
        self._session: Any = None
        self._outgoing: list[NewRow] = []

    def _opened_session(self) -> Any:  # noqa: ANN401 - what the two kinds of context say
        self._guard()
        if self._session is None:
            self._session = self._open()
        return self._session

    def enqueue(
        self,
        type: str,  # noqa: A002 - a job's type, as everywhere
        payload: object,
        *,
        key: str | None = None,
        ordering_key: str | None = None,
        queue: str | Queue | None = None,
        priority: str | None = None,
        delay: float = 0,
        headers: Mapping[str, Header] | None = None,
    ) -> str:
        """Enqueue a job that exists once this attempt is done, and never if it fails; return its id.

        The arguments are those of `Outbox.enqueue`; without `queue` it goes to that of the handler of `type` among this worker's.
        Raises InvalidMessage for what can't travel, or when no handler tells the queue; LeaseLost when this attempt may no longer change anything.
        """
        self._guard()
        row = self._prepare(type, payload, key=key, ordering_key=ordering_key, queue=queue, priority=priority, delay=delay, headers=headers)
        self._outgoing.append(row)
        job_id: str = row["id"]
        return job_id

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger `postroom.job`; it puts type, key and attempt before each message."""
        return _JobLogger(_logger, {"job_id": self.job.id, "job_type": self.job.type, "job_key": self.job.key, "attempt": self.job.attempt})

    @property
    def opened(self) -> Any:  # noqa: ANN401 - as `session`
        """The session when it was asked for, None else. For the worker."""
        return self._session

    @property
    def outgoing(self) -> Sequence[NewRow]:
        """The rows of the jobs enqueued so far. For the worker."""
        return self._outgoing


class Context(_Attempt):
    """What a handler may ask of the attempt that it runs in; an `async def` handler has an `AsyncContext`.

    For the handler's own thread alone, and only until it returns. `job` is the job. `idempotency_key` is the same at every attempt: pass it on to
    services that can recognise a repeated request. `deadline` is when the handler's timeout ends the attempt, by `time.monotonic()`; None
    without a timeout.
    """

    __slots__ = ()

    @property
    def session(self) -> Session:
        """A Session on the ledger's database, opened when it is first asked for.

        From then on what is done in it, what `enqueue` was given, and `done` are one transaction, which the worker commits when the handler
        has returned: don't commit it yourself. A savepoint (`begin_nested`) is fine. Raises LeaseLost when this attempt may no longer change
        anything; when it is cut short, by its timeout or because its lease is lost, its transaction is rolled back at once and the session raises.
        An attempt whose session can't be opened because the database is away or locked, and which fails for it, is handed back uncharged.

        SQLite has one writer: from its first use on the session holds the write lock of the whole database, so such handlers take turns,
        in all processes. Use it late and briefly there.
        """
        session: Session = self._opened_session()
        return session


class AsyncContext(_Attempt):
    """The context of an `async def` handler: as `Context`, for the handler's own task, with an AsyncSession, whose methods are awaited."""

    __slots__ = ()

    @property
    def session(self) -> AsyncSession:
        """An AsyncSession, as `Context.session` in all else. Raises MissingExtra without the extra `async`; the attempt is handed back then."""
        session: AsyncSession = self._opened_session()
        return session


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:  # noqa: ANN401 - logging's own
        extra = dict(self.extra or {})
        return f"{extra['job_type']} {extra['job_key']} (attempt {extra['attempt']}): {msg}", {**kwargs, "extra": extra}
