"""Deliveries that wait in this process until somebody asks for them: as they came, or with the order of each key."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pika import BasicProperties

    from .feed import Feed

__all__ = ["KeyedShelf", "Parcel", "PlainShelf", "Shelf"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Parcel:
    """One delivery, unopened. `tag` means something to its `feed` only. `arrived` is by this process's clock, in seconds."""

    feed: Feed
    tag: int
    exchange: str
    routing_key: str
    redelivered: bool
    properties: BasicProperties
    body: bytes
    key: str | None
    arrived: float


class Shelf(Protocol):
    """The parcels of one feed. Its consumer holds its lock around every call."""

    @property
    def is_ready(self) -> bool:
        """Whether there is one to take."""

    def put(self, parcel: Parcel) -> None:
        """One has come."""

    def take(self) -> Parcel:
        """Hand out the one whose turn it is."""

    def settled(self, parcel: Parcel) -> None:
        """One that was handed out has left for good."""

    def released(self, parcel: Parcel) -> bool:
        """One that was handed out comes back. False when the broker is to have it."""

    def overdue(self, before: float) -> Sequence[Parcel]:
        """Take out what has been waiting since before that time, and may go back to the broker."""


class PlainShelf:
    """First come, first served."""

    def __init__(self) -> None:
        self._line: deque[Parcel] = deque()

    @property
    def is_ready(self) -> bool:
        """See `Shelf`."""
        return bool(self._line)

    def put(self, parcel: Parcel) -> None:
        """See `Shelf`."""
        self._line.append(parcel)

    def take(self) -> Parcel:
        """See `Shelf`."""
        return self._line.popleft()

    def settled(self, parcel: Parcel) -> None:
        """Nobody waited for it."""

    def released(self, parcel: Parcel) -> bool:  # noqa: ARG002 - see `Shelf`
        """Anyone may have it."""
        return False

    def overdue(self, before: float) -> Sequence[Parcel]:
        """The oldest are in front."""
        late = []
        while self._line and self._line[0].arrived < before:
            late.append(self._line.popleft())
        return late


class KeyedShelf:
    """Of each key one is handed out at a time, and the next when that one has left.

    Its queue is read by this process alone, so what is released waits here: through the broker it would come back behind its followers.
    """

    def __init__(self) -> None:
        self._ready: deque[Parcel] = deque()
        self._lines: dict[str, deque[Parcel]] = {}
        """For each key of which one is ready or handed out, those behind it."""

    @property
    def is_ready(self) -> bool:
        """See `Shelf`."""
        return bool(self._ready)

    def put(self, parcel: Parcel) -> None:
        """See `Shelf`."""
        if parcel.key is None:
            self._ready.append(parcel)
        elif parcel.key in self._lines:
            self._lines[parcel.key].append(parcel)
        else:
            self._lines[parcel.key] = deque()
            self._ready.append(parcel)

    def take(self) -> Parcel:
        """See `Shelf`."""
        return self._ready.popleft()

    def settled(self, parcel: Parcel) -> None:
        """The next of its key may go."""
        if parcel.key is None:
            return
        line = self._lines[parcel.key]
        if line:
            self._ready.append(line.popleft())
        else:
            del self._lines[parcel.key]

    def released(self, parcel: Parcel) -> bool:
        """To its old place: in front of its followers."""
        self._ready.appendleft(parcel)
        return True

    def overdue(self, before: float) -> Sequence[Parcel]:  # noqa: ARG002 - see `Shelf`
        """None: what went back would come behind its followers."""
        return ()
