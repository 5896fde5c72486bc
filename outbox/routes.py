"""Which queue a job goes to: the names that the callers of one outbox may use, and the carriers they lead to."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from postroom.adapters.errors import ConfigurationError, InvalidMessage
from postroom.adapters.seam import Queue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Route", "Routes"]


class Route(NamedTuple):
    """Where a job goes: the carrier's (or topic's) name, and whether its queue is declared ordered."""

    carrier: str
    ordered: bool


class Routes:
    """The queues of one outbox. The first is for jobs that name none, and `priority` for those that name none in a queue split by priorities."""

    __slots__ = ("_first", "_priority", "_routes")

    def __init__(self, queues: Sequence[str | Queue], priority: str | None = None) -> None:
        known = [queue if isinstance(queue, Queue) else Queue(name=queue) for queue in queues]
        if priority is not None and not any(priority in queue.priorities for queue in known):
            raise ConfigurationError(f"priority {priority!r} is in none of its queues ({', '.join(queue.name for queue in known)})")
        self._first = known[0].name
        self._priority = priority
        self._routes: Mapping[tuple[object, object], Route] = {
            (queue.name, level): route for queue in known for level, route in _levels(queue).items()
        }

    def find(self, queue: str | Queue | None, priority: str | None, path: str = "") -> Route:
        """Return where a job goes; InvalidMessage for a name that is not known here, with `path` before its own. A `Queue` is always known."""
        if isinstance(queue, Queue):
            return Routes([queue]).find(queue.name, priority or (self._priority if self._priority in queue.priorities else None), path)
        name = self._first if queue is None else queue
        try:
            route = self._routes.get((name, priority)) or self._routes.get((name, priority or self._priority))
        except TypeError:  # a list, perhaps
            route = None
        return route or self._refuse(name, priority, path)

    def _refuse(self, name: object, priority: object, path: str) -> Route:
        known = sorted({str(each) for each, _ in self._routes})
        levels = ", ".join(sorted(str(level) for each, level in self._routes if each == name and level is not None))
        if name not in known:
            raise InvalidMessage(f"{path}queue: {name!r} is not a queue of this outbox ({', '.join(known)}); name it in Outbox(queues=...)")
        if priority is None:
            raise InvalidMessage(f"{path}priority: queue {name!r} is split; name one of {levels}")
        raise InvalidMessage(f"{path}priority: {priority!r} is none of queue {name!r}, which has {levels or 'no priorities'}")


def _levels(queue: Queue) -> Mapping[str | None, Route]:
    if not queue.priorities:
        return {None: Route(queue.back_to(queue.name), queue.ordered)}
    return {level: Route(f"{queue.name}.{level}", queue.ordered) for level in queue.priorities}
