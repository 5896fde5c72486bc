"""The adapter of `memory:`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from postroom.adapters.errors import ConfigurationError
from postroom.adapters.machine import Status
from postroom.adapters.seam import Capabilities, Message, Outcome, Queue, Verdict
from postroom.adapters.weights import Turns

from .consumer import MemoryConsumer
from .letters import MemoryDeadLetters
from .store import Store, steady_clock
from .topology import Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from postroom.adapters.seam import Adapter, Consumer, DeadLetters, Hold

__all__ = ["Memory", "open_memory"]


def open_memory(url: str, options: Mapping[str, object]) -> Adapter:
    """A new, empty Memory. Raises ConfigurationError for options, and for a URL with a name in it: parts that share a Memory share the object."""
    if options:
        raise ConfigurationError(f"memory: has no options, and {min(options)!r} is given")
    if url.partition(":")[2].strip("/"):
        raise ConfigurationError(f"{url!r}: write `memory:`; to share one between the parts of a process, pass the adapter itself")
    return Memory()


class Memory:
    """A broker in this process; each instance is one of its own. `clock` returns seconds since the epoch.

    With `native_delay=False` it stands for a message broker in tests of the layers above: it can't hold a job back,
    and a message that is published twice is delivered twice.
    """

    def __init__(self, *, clock: Callable[[], float] | None = None, native_delay: bool = True) -> None:
        self.capabilities = Capabilities(
            name="memory",
            durable=False,
            shared=False,
            native_delay=native_delay,
            atomic_publish=True,
            clock_leases=True,
            counts_attempts=True,
        )
        self._store = Store(clock or steady_clock(), keeps_copies=not native_delay)
        self._topology = Topology(self._store.carriers)

    def ensure(self, queues: Sequence[Queue], *, passive: bool = False) -> None:
        """Declare; see `Adapter.ensure`. Never blocks, like all of this class."""
        with self._store.changed:
            self._store.require_open()
            self._topology.ensure(queues, passive=passive)

    def prepare(self, queues: Collection[str], *, group: str, passive: bool = False) -> Mapping[str, Hold]:  # noqa: ARG002 - the seam's
        """Nothing to set up, and no limit: leases are extended for as long as a handler runs."""
        return {}

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Publish; see `Adapter.publish`."""
        if not self.capabilities.native_delay and any(message.delay for message in messages):
            raise ConfigurationError("this backend can't hold a job back (no native_delay): publish it when it is due")
        with self._store.changed:
            self._store.require_open()
            outcomes = [self._publish(message) for message in messages]
            self._store.changed.notify_all()
        return outcomes

    def consume(self, queues: Mapping[str, int], *, group: str, prefetch: int, name: str) -> Consumer:  # noqa: ARG002 - a group has a carrier here
        """Subscribe; see `Adapter.consume`."""
        if prefetch < 1:
            raise ConfigurationError(f"prefetch must be at least 1, not {prefetch}")
        with self._store.changed:
            self._store.require_open()
            carriers = {carrier: self._store.carrier(carrier) for carrier in queues}
        return MemoryConsumer(self._store, carriers, Turns(queues), prefetch, name, native_delay=self.capabilities.native_delay)

    def dead_letters(self, queue: str) -> DeadLetters:
        """The dead letters of one carrier; see `DeadLetters`."""
        with self._store.changed:
            self._store.require_open()
            return MemoryDeadLetters(self._store, self._store.carrier(queue))

    def abandon(self, name: str) -> int:
        """Hand back what the consumers of this name hold; see `Adapter.abandon`."""
        with self._store.changed:
            self._store.require_open()
            return self._store.hand_back([entry for entry in self._store.running.values() if entry.holder and entry.holder.name == name])

    def carriers(self) -> Sequence[str]:
        """All that were ever declared."""
        with self._store.changed:
            self._store.require_open()
            return sorted(self._store.carriers)

    def depth(self, queue: str) -> Mapping[str, int]:
        """Count by status; `blocked`, if any, are those pending whose line a failed job holds. A job that is done is forgotten at once."""
        with self._store.changed:
            self._store.require_open()
            carrier = self._store.carriers.get(queue)
            counts = {status.value: carrier.counts[status] if carrier else 0 for status in (Status.PENDING, Status.RUNNING, Status.FAILED)}
            blocked = sum(map(carrier.line.behind, carrier.dead.values())) if carrier else 0
            return {**counts, **({"blocked": blocked} if blocked else {})}

    def tidy(self, *, older_than: float, limit: int = 1000) -> int:  # noqa: ARG002 - the seam's
        """Nothing to remove, ever."""
        return 0

    def close(self) -> None:
        """End it; whoever waits in `receive` gets Closed."""
        with self._store.changed:
            self._store.closed = True
            self._store.changed.notify_all()

    def _publish(self, message: Message) -> Outcome:
        if message.queue not in self._topology.routes:
            return Outcome(Verdict.BUSY, f"queue {message.queue!r} is not declared; run `postroom declare ...` or start its worker")
        kept = replace(message, headers=dict(message.headers))  # its publisher can't change it any more
        for carrier in self._topology.routes[message.queue]:
            self._store.enter(carrier, kept)
        return Outcome(Verdict.CONFIRMED)
