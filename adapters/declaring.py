"""What the declarations of one ensure() must not say to each other, on any backend: it is found before a server is asked anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection

    from .seam import Queue

__all__ = ["require_consistent"]

_COMPARED = ("ordered", "lease", "dead_letter", "foreign")


def require_consistent(queues: Collection[Queue]) -> None:
    """Raise ConfigurationError for two queues that contradict each other; the message names both.

    A queue may be given twice, and one name with other groups, or other priorities, if the rest is the same.
    """
    owners: dict[str, Queue] = {}
    for queue in queues:
        for place in (queue.name, *queue.carriers):
            _require_same(place, owners.setdefault(place, queue), queue)
    for queue in queues:
        for grave in map(queue.dead_letter_of, queue.carriers):
            if grave in owners:
                raise ConfigurationError(
                    f"queue {queue.name!r}: its dead letters can't go to {grave!r}, where the jobs of queue {owners[grave].name!r} are: "
                    "choose another dead_letter, or another name for one of them"
                )


def _require_same(place: str, one: Queue, other: Queue) -> None:
    if one.name != other.name:
        raise ConfigurationError(f"queues {one.name!r} and {other.name!r} would both have their jobs in {place!r}: give one of them another name")
    if bool(one.groups) != bool(other.groups):
        raise ConfigurationError(f"queue {one.name!r} is declared as a queue and as a topic with groups: give one of them another name")
    for argument in _COMPARED:
        this, that = getattr(one, argument), getattr(other, argument)
        if this != that:
            raise ConfigurationError(f"queue {one.name!r} is declared with {argument} {this!r} and with {argument} {that!r}: use one Queue for both")
