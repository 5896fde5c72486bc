"""The brokers that can't hold a job back, one queue of its own on each for a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from postroom.adapters import Adapter, connect
from postroom.adapters.memory import Memory

from .kafka import QUICK
from .rabbit import raw

__all__ = ["BROKERS", "ORDERED", "connected_to"]

ORDERED = ["memory", "rabbitmq", "kafka"]
"""Those that keep the order of a key, by the names that `connected_to` knows."""
BROKERS = [*ORDERED, "share"]
"""All of them. Memory stands for a broker here: it has no delays of its own, and keeps every copy."""

_PARTITIONS = 8


@contextmanager
def connected_to(kind: str, fixture: Callable[[str], Any]) -> Iterator[Adapter]:
    """An adapter on the server that `fixture`, the test's own way to ask, gives for this kind of broker."""
    match kind:
        case "memory":
            yield Memory(native_delay=False)
        case "rabbitmq":
            yield from _rabbitmq(fixture("rabbitmq_url"))
        case _:
            how = (
                "mode=share&partitions=1" if kind == "share" else f"partitions=2&{QUICK}"
            )  # of one partition all members of a share group get their share
            yield connect(f"kafka://{fixture('kafka_bootstrap')}?{how}")


def _rabbitmq(url: str) -> Iterator[Adapter]:
    """Leaves no queue behind: each has files open on the server."""
    adapter = connect(url)
    yield adapter
    with raw(url) as channel:
        for queue in (f"{name}{part}" for name in adapter.carriers() for part in ("", ".dlq", *(f"#{number}" for number in range(_PARTITIONS)))):
            channel.queue_delete(queue)
