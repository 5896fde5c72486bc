"""Queues of other programs: what the tests of mappers share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from postroom.adapters import Message, Queue
from postroom.adapters.sql import schema
from postroom.adapters.sql.engine import open_engine
from postroom.consumers import Context, MappedJob
from postroom.consumers.dead import Letter, Selection, letters, places
from postroom.consumers.ledger import Ledger
from postroom.consumers.replay import Fate, Replay, mark
from postroom.consumers.worker import receiver, worker

from .command import postroom
from .inprocess import SOON, Office

__all__ = ["ORDER", "Order", "command_on", "dead", "draining_often", "failing", "handled", "order", "replay", "send"]

APPS = Path(__file__).parents[1] / "apps"
ORDER = {"order_id": 4711}


@contextmanager
def draining_often() -> Iterator[None]:
    """Workers in this process drain in no time, for tests that do so again and again."""
    with patch.object(receiver, "POLL", 0.05), patch.object(worker, "GLANCE", 0.02):
        yield


def command_on(database_url: str) -> Callable[..., str]:
    """`postroom`, in the folder of the applications, on an empty database: `command(broker, code, *arguments)`."""
    schema.create(engine := open_engine(database_url))
    engine.dispose()

    def run(broker: str, code: int, *arguments: str) -> str:
        answer = postroom(*arguments, cwd=APPS, POSTROOM_DATABASE=database_url, POSTROOM_BROKER=broker)
        assert answer.returncode == code, answer.stderr
        return answer.stdout + answer.stderr

    return run


def dead(here: Office, *queues: str) -> list[Letter]:
    return [letter for _, letter in letters(places(here.engine, here.adapter, queues or [here.name]), Selection())]


def replay(here: Office, *queues: str) -> dict[Fate, int]:
    ledger = Ledger(here.engine, worker="an operator", lease=30.0, native_delay=here.adapter.capabilities.native_delay)
    meant = mark(here.engine, letters(places(here.engine, here.adapter, queues or [here.name]), Selection()))
    return dict(Replay(here.engine, ledger).run(meant, progress=lambda _: None))


def failing(here: Office, queue: Queue, *, attempts: int, met: list[Message]) -> list[tuple[str, int]]:
    """A mapper that notes what it meets, and a handler that fails."""
    runs: list[tuple[str, int]] = []

    @here.jobs.mapper(queue=queue)
    def of_task(message: Message) -> MappedJob:
        met.append(message)
        return MappedJob(type="ship", key="order-4711", payload=ORDER)

    @here.jobs.handler("ship", queue=queue, max_attempts=attempts, backoff=SOON)
    def ship(_order: Any, context: Context) -> None:
        runs.append((context.job.queue, context.job.attempt))
        if len(runs) <= attempts:
            raise RuntimeError("no truck")

    return runs


@dataclass
class Order:
    order_id: int


def order(message: Message) -> MappedJob | None:
    """The mapper of most tests: `{"order": 4711, "at": ...}`, of which the time is not part of the work."""
    body = json.loads(message.body)
    if body.get("heartbeat"):
        return None
    return MappedJob(type="order", key=f"order-{body['order']}", payload={"order_id": body["order"]})


def send(here: Office, body: object, *, id_: str = "theirs-1", **message: Any) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    here.publish(Message(id=id_, queue="q", body=raw, headers={"producer": "shop", "raw": b"\xff"}, **message))


def handled(here: Office, mapper: Callable[[Message], Any] = order, **options: Any) -> list[Any]:
    """Have a mapper, and a handler for what it makes; return what the handler will have seen."""
    seen: list[Any] = []
    here.jobs.mapper(queue="q")(mapper)

    @here.jobs.handler("order", queue="q", backoff=SOON, **options)
    def handle(payload: Order, context: Context) -> None:
        seen.append((payload, context.job))

    return seen
