"""The outbox as a service sees it: a job is a row of the caller's own transaction, and exists if and only if that commits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, overload

from postroom.adapters.errors import ConfigurationError
from postroom.adapters.numbers import flaw

from .envelope import Envelope
from .ids import new_id
from .payload import MAX_PAYLOAD, encode_payload
from .routes import Routes
from .rows import NewRow, build_row
from .rules import check_delay, check_headers, check_key, check_type
from .targets import AsyncTarget, Target, unscoped, write

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from postroom.adapters.seam import Header, Queue

__all__ = ["Draft", "Outbox"]

Answer = TypeVar("Answer")

_NO_HEADERS: Mapping[str, Header] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One job for `enqueue_many`; the fields are the arguments of `Outbox.enqueue`."""

    type: str
    payload: Any
    key: str | None = None
    ordering_key: str | None = None
    queue: str | Queue | None = None
    priority: str | None = None
    delay: float = 0
    headers: Mapping[str, Header] = field(default_factory=dict)


class Outbox:
    """Writes jobs into the caller's transaction. Immutable, without connections of its own: make one, share it among threads and tasks.

    `queue` is where jobs go that name no other; `queues` are the others that they may name, so that a slip of the pen is told at once. A queue
    that is ordered, a topic, or split by priorities must be given as a `Queue`. `priority` is for jobs that name none, in such a split queue.
    `max_payload` is in bytes of JSON. `notify` wakes the relays at commit on PostgreSQL; NOTIFY makes commits wait for each other for a moment,
    so a service with thousands of commits a second may prefer the relays' polling.
    """

    __slots__ = ("_max_payload", "_new_id", "_notify", "_routes")

    def __init__(
        self,
        queue: str | Queue,
        *,
        queues: Iterable[str | Queue] = (),
        priority: str | None = None,
        max_payload: int = MAX_PAYLOAD,
        notify: bool = True,
        new_id: Callable[[], str] = new_id,
    ) -> None:
        if wrong := flaw("max_payload", max_payload, whole=True, least=1, unit="bytes"):
            raise ConfigurationError(wrong)
        self._routes = Routes([queue, *queues], priority)
        self._max_payload = max_payload
        self._notify = notify
        self._new_id = new_id

    @overload
    def enqueue(
        self,
        target: Target,
        type: str,
        payload: object,
        *,
        key: str | None = None,
        ordering_key: str | None = None,
        queue: str | Queue | None = None,
        priority: str | None = None,
        delay: float = 0,
        headers: Mapping[str, Header] | None = None,
    ) -> str: ...
    @overload
    def enqueue(
        self,
        target: AsyncTarget,
        type: str,
        payload: object,
        *,
        key: str | None = None,
        ordering_key: str | None = None,
        queue: str | Queue | None = None,
        priority: str | None = None,
        delay: float = 0,
        headers: Mapping[str, Header] | None = None,
    ) -> Awaitable[str]: ...
    def enqueue(  # noqa: PLR0913 - the fields of a job
        self,
        target: Target | AsyncTarget,
        type: str,  # noqa: A002 - a job's type, as everywhere
        payload: object,
        *,
        key: str | None = None,
        ordering_key: str | None = None,
        queue: str | Queue | None = None,
        priority: str | None = None,
        delay: float = 0,
        headers: Mapping[str, Header] | None = None,
    ) -> str | Awaitable[str]:
        """Add a job to the transaction of `target` and return its id; for an AsyncSession or AsyncConnection, an awaitable of it.

        The job exists when that transaction commits, and never if it (or the savepoint it was added in) rolls back. One INSERT; nothing is flushed.

        `key` is the domain key that consumers deduplicate on (`order-4711`), by default the id: unique. Jobs of one `ordering_key` (by default the
        key) leave in their order. `delay` is in seconds. `headers` travel beside the payload.

        Raises InvalidMessage, at once also for an async target, when something could never travel: the message starts with its path, nothing is
        written and the transaction can go on. Raises ConfigurationError when `target` is not in a transaction that can be rolled back.
        """
        row = self.row(type, payload, key=key, ordering_key=ordering_key, queue=queue, priority=priority, delay=delay, headers=headers)
        return self._put(target, (row,), row["id"])

    @overload
    def enqueue_many(self, target: Target, drafts: Iterable[Draft]) -> list[str]: ...
    @overload
    def enqueue_many(self, target: AsyncTarget, drafts: Iterable[Draft]) -> Awaitable[list[str]]: ...
    def enqueue_many(self, target: Target | AsyncTarget, drafts: Iterable[Draft]) -> list[str] | Awaitable[list[str]]:
        """Add several jobs, in this order, and return their ids: all of them, or none when one is refused (`drafts[3].payload...`)."""
        rows = [self._row_of(draft, f"drafts[{index}].") for index, draft in enumerate(drafts)]
        return self._put(target, rows, [row["id"] for row in rows])

    def row(  # noqa: PLR0913 - the fields of a job
        self,
        type: str,  # noqa: A002 - as in enqueue
        payload: object,
        *,
        key: str | None = None,
        ordering_key: str | None = None,
        queue: str | Queue | None = None,
        priority: str | None = None,
        delay: float = 0,
        headers: Mapping[str, Header] | None = None,
        path: str = "",
    ) -> NewRow:
        """Return the row that `enqueue` would insert, for one who inserts it later (`rows.insert_rows`). Raises InvalidMessage as `enqueue` does.

        `path` is put before the paths in its messages.
        """
        check_type(type, f"{path}type")
        if key is not None:
            check_key(key, f"{path}key")
        if ordering_key is not None:
            check_key(ordering_key, f"{path}ordering_key")
        if headers:
            check_headers(headers, f"{path}headers")
        if delay != 0:
            check_delay(delay, f"{path}delay")
        route = self._routes.find(queue, priority, path)
        body = encode_payload(payload, self._max_payload, f"{path}payload")
        job_id = self._new_id()
        key = key or job_id
        envelope = Envelope(id=job_id, type=type, key=key, ordering_key=ordering_key or key, queue=route.carrier, headers=headers or _NO_HEADERS)
        return build_row(envelope, body, ordered=route.ordered, delay=delay)

    def _row_of(self, draft: Draft, path: str) -> NewRow:
        return self.row(
            draft.type,
            draft.payload,
            key=draft.key,
            ordering_key=draft.ordering_key,
            queue=draft.queue,
            priority=draft.priority,
            delay=draft.delay,
            headers=draft.headers,
            path=path,
        )

    def _put(self, target: Target | AsyncTarget, rows: Sequence[NewRow], answer: Answer) -> Answer | Awaitable[Answer]:
        session = unscoped(target)
        if hasattr(session, "run_sync"):
            return _put_later(session, rows, answer, notify=self._notify)
        write(session, rows, notify=self._notify)
        return answer


async def _put_later(session: Any, rows: Sequence[NewRow], answer: Answer, *, notify: bool) -> Answer:  # noqa: ANN401 - async session or connection
    await session.run_sync(write, rows, notify=notify)
    return answer
