"""What an adapter can be connected to: the backends that hold jobs back by themselves, and the brokers that can't."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from postroom.adapters import Adapter, connect
from postroom.adapters.memory import Memory

from .kafka import QUICK
from .rabbit import raw

__all__ = ["BROKERS", "EVERYWHERE", "IN_PROCESS", "NATIVE", "ORDERED", "connected_to"]

NATIVE = ["sqlite", "memory, with delays"]
"""Those that hold a job back, and keep it in its place, by themselves."""
ORDERED = ["memory", "rabbitmq", "kafka"]
"""Those that keep the order of a key, by the names that `connected_to` knows."""
BROKERS = [*ORDERED, "share"]
"""All that can't hold a job back. Memory stands for a broker here: it has no delays of its own, and keeps every copy."""
IN_PROCESS = [*NATIVE, "memory"]
"""Those that need no server."""
EVERYWHERE = [*NATIVE, *BROKERS]

_PARTITIONS = 8


@contextmanager
def connected_to(kind: str, fixture: Callable[[str], Any]) -> Iterator[Adapter]:
    """An adapter on the server that `fixture`, the test's own way to ask, gives for this kind of broker."""
    match kind:
        case "sqlite":
            yield connect(fixture("sqlite_database_url"))
        case "memory, with delays":
            yield Memory()
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
