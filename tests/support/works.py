"""Deliveries and works without a broker, for tests of a worker's parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from postroom.adapters.seam import Delivery, Message, Queue
from postroom.consumers import Jobs
from postroom.consumers.jobs import Handler
from postroom.consumers.ledger import Started
from postroom.consumers.worker.gates import gates_of
from postroom.consumers.worker.work import Work
from postroom.outbox.envelope import Envelope


def nothing(payload: Any) -> None:
    """A handler that does nothing."""


def handler_of(function: Callable[..., Any] = nothing, *, queue: str | Queue = "q", **options: Any) -> Handler:
    jobs = Jobs()
    jobs.handler("t", queue=queue, **options)(function)
    [handler] = jobs.handlers
    return handler


def delivery_of(key: str, *, job_id: str = "", queue: str = "q", type_: str = "t", body: bytes = b"{}", **headers: Any) -> Delivery:
    envelope = Envelope(id=job_id or f"id-of-{key}", type=type_, key=key, ordering_key=key, queue=queue)
    message = Message(id=envelope.id, queue=queue, body=body, headers={**envelope.to_headers(), **headers}, ordering_key=key)
    return Delivery(message=message, queue=queue, token=object())


def work_of(key: str, handler: Handler, *, ordering_key: str = "", started: Started | None = None) -> Work:
    envelope = Envelope(id=f"id-of-{key}", type=handler.type, key=key, ordering_key=ordering_key or key, queue=handler.queue.name)
    work = Work(delivery=delivery_of(key, queue=handler.queue.name), envelope=envelope, handler=handler, digest="", started=started)
    work.gates = gates_of(work)
    return work
