"""What is declared in a Memory, and where a message for a name goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.adapters.declaring import require_consistent
from postroom.adapters.errors import TopologyMismatch

from .lines import Line, OrderedLine
from .store import Carrier, Entry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroom.adapters.seam import Queue

__all__ = ["Topology"]

_COMPARED = ("name", "ordered", "lease", "dead_letter")


class Topology:
    """The carriers by name, and the routes: a topic's name leads to all its groups, a carrier's name to itself."""

    def __init__(self, carriers: dict[str, Carrier]) -> None:
        self._carriers = carriers
        self.routes: dict[str, list[Carrier]] = {}

    def ensure(self, queues: Sequence[Queue], *, passive: bool) -> None:
        """Compare all, then declare what is missing. A topic may gain groups, and a queue priorities."""
        require_consistent(queues)
        declared = {name: carrier.queue for name, carrier in self._carriers.items()}
        for queue in queues:
            _compare(queue, declared, passive=passive)
        for queue in queues:
            self._declare(queue)

    def _declare(self, queue: Queue) -> None:
        for name in queue.carriers:
            if name not in self._carriers:
                line: Line[Entry] = OrderedLine() if queue.ordered else Line()
                self._carriers[name] = Carrier(name=name, queue=queue, line=line)
                self.routes[name] = [self._carriers[name]]
        if queue.groups:
            groups = [*self.routes.get(queue.name, []), *(self._carriers[name] for name in queue.carriers if queue.group_of(name))]
            self.routes[queue.name] = list(dict.fromkeys(groups))


def _compare(expected: Queue, declared: Mapping[str, Queue], *, passive: bool) -> None:
    for carrier in expected.carriers:
        if carrier in declared:
            _compare_arguments(carrier, expected, declared[carrier])
        elif passive:
            raise TopologyMismatch(f"queue {carrier!r}: expected it to be declared, and it is not there")


def _compare_arguments(carrier: str, expected: Queue, actual: Queue) -> None:
    for argument in _COMPARED:
        ours, theirs = getattr(expected, argument), getattr(actual, argument)
        if ours != theirs:
            raise TopologyMismatch(f"queue {carrier!r}: expected {argument} {ours!r}, but it is there with {argument} {theirs!r}")
