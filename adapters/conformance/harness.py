"""What a backend brings to the suite: a handful of methods, all about the world around the adapter, none about its promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from postroom.adapters.seam import Adapter, Queue

__all__ = ["Harness"]


class Harness(ABC):
    """One backend under test. A fresh harness is made for each test, and closed after it.

    The suite gives its queues names that nobody used before, so one server may serve all tests.
    """

    lease: ClassVar[float] = 30.0
    """The lease (seconds) of the suite's queues: short where `advance` really waits."""
    silence: ClassVar[float] = 0.2
    """How long (seconds) nothing must come before the suite believes that nothing will."""
    patience: ClassVar[float] = 30.0
    """How long (seconds) the suite waits for what must come."""
    difference: ClassVar[tuple[str, ...]] = ("ordered", "True", "False")
    """What TopologyMismatch must name after `differently`: the argument, the value expected, the value there."""
    opener: ClassVar[str] = "postroom.adapters:connect"
    """`module:callable` that opens an adapter from `url` in another process. Needed where `Capabilities.shared`."""

    @property
    def url(self) -> str:
        """What `opener` is called with, in another process."""
        raise NotImplementedError

    @abstractmethod
    def adapter(self) -> Adapter:
        """Return an adapter, connected. All adapters of one harness see the same queues. Each may be closed by the suite."""

    def restart(self) -> Adapter:
        """End all that may hold state outside the durable store (server, connections, files); return a new adapter. Where `durable`."""
        raise NotImplementedError

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass for leases and delays: age what is stored, move a clock, or sleep. Where `clock_leases` or `native_delay`."""
        raise NotImplementedError

    def differently(self, queue: Queue) -> Queue:
        """Return a declaration of the same name whose arguments this backend must refuse, once `queue` is there."""
        return replace(queue, ordered=not queue.ordered)

    def close(self) -> None:  # noqa: B027 - nothing to do where the adapters' own close() is all
        """Close every adapter that was given out; free the rest."""
