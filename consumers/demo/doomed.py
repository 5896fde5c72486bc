"""A worker that stops dead between the work and the ack: `python -m postroom.consumers.demo.doomed`, with both URLs in the environment.

It is the worker of `postroom work`, in one process. Only the broker's `ack` is another: it says so on standard output and waits to be killed.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any, cast

from postroom.adapters.connect import connect
from postroom.adapters.sql.engine import open_engine
from postroom.consumers.worker.settings import WorkerSettings
from postroom.consumers.worker.stop import Stop
from postroom.consumers.worker.worker import Worker

from .app import LEASE, jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.adapters.seam import Adapter, Consumer, Delivery

__all__ = ["ABOUT_TO_ACK"]

ABOUT_TO_ACK = "about to ack"


class _NeverAcks:
    """A consumer whose ack never comes to pass; all else is the real one's."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the consumer has there
        return getattr(self._consumer, name)

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        print(ABOUT_TO_ACK, *(delivery.message.id for delivery in deliveries), flush=True)  # noqa: T201 - told to the storyteller
        threading.Event().wait()


class _Doomed:
    """An adapter that gives out such consumers."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the adapter has there
        return getattr(self._adapter, name)

    def consume(self, *arguments: Any, **options: Any) -> _NeverAcks:  # noqa: ANN401 - passed on
        return _NeverAcks(self._adapter.consume(*arguments, **options))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="   (%(message)s)")  # an aside in the story
    database, broker = os.environ["POSTROOM_DATABASE"], os.environ["POSTROOM_BROKER"]
    settings = WorkerSettings(concurrency=1, lease=LEASE, relay=None)
    Worker(jobs, open_engine(database, pool_size=8), cast("Adapter", _Doomed(connect(broker))), settings).run(Stop())
