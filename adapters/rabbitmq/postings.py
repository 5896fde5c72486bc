"""Messages on their way to the broker, and the callers who wait for the answers."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.adapters.seam import Outcome

__all__ = ["Batch", "Posting"]


class Batch:
    """The answers that one caller waits for. They are given on the connection's thread only."""

    def __init__(self, size: int) -> None:
        self.outcomes: list[Outcome | None] = [None] * size
        self._left = size
        self._complete = threading.Event()

    @classmethod
    def of(cls, postings: Sequence[Posting]) -> Batch:
        """A new one, for these."""
        batch = cls(len(postings))
        for index, posting in enumerate(postings):
            posting.batch, posting.index = batch, index
        return batch

    def answer(self, index: int, outcome: Outcome) -> None:
        """Take one."""
        self.outcomes[index] = outcome
        self._left -= 1
        if not self._left:
            self._complete.set()

    def wait(self, silence: float) -> bool:
        """Block until all are there, and return True; or until none has come for `silence` seconds."""
        before = self._left + 1
        while before > self._left:
            before = self._left
            if self._complete.wait(silence):
                return True
        return False


@dataclass(slots=True, eq=False)
class Posting:
    """One message, sent once: addressed, encoded, and who waits for its answer (nobody, or nobody any more, when `batch` is None)."""

    exchange: str
    routing_key: str
    id: str
    properties: bytes
    body: bytes
    batch: Batch | None = None
    index: int = 0
    returned: bool = False
    outcome: Outcome | None = None

    @property
    def address(self) -> tuple[str, str, str]:
        """What tells it from others, but for copies."""
        return self.exchange, self.routing_key, self.id

    def is_copy_of(self, other: Posting) -> bool:
        """Whether, of two with one address, nobody could tell which one arrived."""
        return (self.properties, self.body) == (other.properties, other.body)

    def copy(self) -> Posting:
        """The very same message, to be sent again."""
        return Posting(self.exchange, self.routing_key, self.id, self.properties, self.body)

    def answer(self, outcome: Outcome) -> None:
        """Tell who waits; keep it for who may ask again."""
        batch, self.batch, self.outcome = self.batch, None, outcome
        if batch is not None:
            batch.answer(self.index, outcome)

    def move_to(self, other: Posting) -> None:
        """Let who waits for this one wait for the other."""
        other.batch, other.index, self.batch = self.batch, self.index, None
