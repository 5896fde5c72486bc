"""What may not run at once in this process: two jobs of one ordering key of an ordered queue, more of a handler's jobs than its `concurrency`."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .work import Work

__all__ = ["GateName", "Gates"]

GateName: TypeAlias = tuple[object, int]
"""What a gate guards, and how many it lets in."""


class _Gate:
    __slots__ = ("inside", "parked")

    def __init__(self) -> None:
        self.inside = 0
        self.parked: deque[Work] = deque()


class Gates:
    """The gates that are in use. Works that find one full are parked before it, in their order. Not thread-safe: the buffer's lock guards it."""

    def __init__(self) -> None:
        self._gates: dict[GateName, _Gate] = {}

    def enter(self, work: Work) -> bool:
        """Let `work` through all its gates, or park it before the first that is full."""
        if work.inside:
            return True
        gates = [self._gates.setdefault(name, _Gate()) for name in work.gates]
        for (_, limit), gate in zip(work.gates, gates, strict=True):
            if gate.inside >= limit:
                gate.parked.append(work)
                return False
        for gate in gates:
            gate.inside += 1
        work.inside = True
        return True

    def leave(self, work: Work) -> Sequence[Work]:
        """`work` is over; return the parked works that may try again. A gate that nobody uses is forgotten."""
        if not work.inside:
            return ()
        work.inside = False
        gates = [self._gates[name] for name in work.gates]
        for gate in gates:
            gate.inside -= 1
        woken = [gate.parked.popleft() for gate in gates if gate.parked]
        for name in work.gates:
            if not (self._gates[name].inside or self._gates[name].parked):
                del self._gates[name]
        return woken

    def clear(self) -> Sequence[Work]:
        """Return all that is parked; nothing is then."""
        parked = [work for gate in self._gates.values() for work in gate.parked]
        for gate in self._gates.values():
            gate.parked.clear()
        self._gates = {name: gate for name, gate in self._gates.items() if gate.inside}
        return parked


def gates_of(work: Work) -> Sequence[GateName]:
    """The gates that `work` must pass; most works pass none."""
    handler = work.handler
    ordered: list[GateName] = [((work.delivery.queue, work.envelope.ordering_key), 1)] if handler.queue.ordered else []
    return [*ordered, (handler, handler.concurrency)] if handler.concurrency is not None else ordered
