"""One assignment of one partition: an object of its own each time, so nothing from before a rebalance can be settled after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import TopicPartition

from .shelf import Shelf
from .watermark import Watermark

if TYPE_CHECKING:
    from .entry import Entry, Source

__all__ = ["Assigned"]

SPAN = 20_000
"""How many offsets reading may be ahead of the lowest unfinished one: what a crash would have read again, at most."""


class Assigned:
    """See `entry.Place`. The feed's thread reads and commits; settling finishes."""

    def __init__(self, source: Source, partition: int, *, start: int | None) -> None:
        self.source = source
        self.partition = partition
        self.shelf = Shelf(ordered=source.ordered)
        self.watermark = Watermark(start)
        self.over = False
        self.paused: bool | None = None
        """What the client was told; None: nothing yet for this assignment."""
        self.heard = False
        """Whether the broker has answered for it: with a record, or that there is none."""
        self.share: int | None = None
        """How many records may wait here while the consumer has enough of them; None while it has not."""
        self._committed = start

    def end(self, entry: Entry, *, buried: bool) -> None:  # noqa: ARG002 - its dead letter is confirmed: done either way
        """See `Place`."""
        self.watermark.finish(entry.offset)

    @property
    def wants_pause(self) -> bool:
        """Whether to read no more: it has its share of what may wait, or the lowest offset is stuck. It goes on at half of its share."""
        enough = self.share is not None and self.shelf.size >= (self.share // 2 if self.paused else self.share)
        return enough or self.watermark.span >= SPAN

    @property
    def place(self) -> TopicPartition:
        """Its name for the client."""
        return TopicPartition(self.source.topic, self.partition)

    def due(self) -> TopicPartition | None:
        """What is to be committed now, if anything: each offset once, and never one below another."""
        offset = self.watermark.committable
        if offset is None or offset == self._committed:
            return None
        self._committed = offset
        return TopicPartition(self.source.topic, self.partition, offset)

    def commit_again(self) -> None:
        """The last commit did not succeed."""
        self._committed = None
