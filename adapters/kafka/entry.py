"""A record on its way through a consumer, and the place that it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import confluent_kafka

    from postroom.adapters.seam import Message

    from .shelf import Shelf

__all__ = ["Entry", "Place", "Source"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A carrier as a consumer sees it: the topic that holds it, the group that reads it, and, of a topic with groups, the name of its own."""

    carrier: str
    topic: str
    group: str
    only: str | None
    queue: str
    ordered: bool
    dead_letter: str
    retries: str = ""


class Place(Protocol):
    """Where records come from, for as long as they are this consumer's: one assignment of a partition, or one round of a share group.

    A place that is `over` never comes back: what was read from it can't be settled any more. That is the fence.
    """

    source: Source
    shelf: Shelf
    over: bool

    def end(self, entry: Entry, *, buried: bool) -> None:
        """A record of this place was acked, or `buried` in the dead letters."""


@dataclass(slots=True, eq=False)
class Entry:
    """One record that was read and is not settled."""

    place: Place
    offset: int
    record: confluent_kafka.Message[Any, Any]
    message: Message
    attempts: int

    @property
    def key(self) -> str | None:
        """Whom it must not overtake."""
        return self.message.ordering_key
