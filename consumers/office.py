"""Dead letters for a program: what `postroom dead` does for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .choosing import meant
from .dead import Selection, as_seen, discarded, letters, places
from .ledger import Ledger
from .replay import Replay, mark

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from sqlalchemy import Engine

    from postroom.adapters.seam import Adapter

    from .dead import Letter, Place
    from .jobs import Jobs
    from .replay import Fate

__all__ = ["DeadLetterOffice"]

_ALL = Selection()


class DeadLetterOffice:
    """The dead letters of an application's queues, those that were lost from there, and the rows of its outbox that the broker refused.

    Each method may be stopped anywhere and called again: no job is replayed twice, and none gets lost. Raises ConfigurationError while the queues
    are not declared (a worker declares them when it starts), and Unavailable when database or broker can't be reached. What is the id of one letter
    and the key of another names none to replay or to discard: that raises Ambiguous, and does nothing.
    """

    def __init__(self, jobs: Jobs, engine: Engine, adapter: Adapter) -> None:
        self._jobs = jobs
        self._engine = engine
        self._adapter = adapter

    def list(self, selection: Selection = _ALL) -> list[Letter]:
        """Read those of a selection, oldest first, with their payloads; consumes nothing."""
        return [letter for _, letter in letters(self._places(selection), selection)]

    def replay(self, selection: Selection = _ALL, *, canary: float | None = None) -> Counter[Fate]:
        """Send them on their way again, each with all its attempts before it; return how many had which fate.

        With a `canary` (seconds) the first of several goes alone, and blocks until a worker has done it. Raises Unproven when it is not done in
        that time: then the others stay.
        """
        native = self._adapter.capabilities.native_delay
        ledger = Ledger(self._engine, worker="postroom.consumers.DeadLetterOffice", lease=30.0, native_delay=native)
        return Replay(self._engine, ledger).run(mark(self._engine, meant(self._places(selection), selection)), progress=lambda _: None, canary=canary)

    def discard(self, reason: str, selection: Selection = _ALL) -> Sequence[Letter]:
        """Remove them for good and return them; their keys are free then. `postroom status` tells the reason.

        Not among them, and left alone, is what somebody else has replayed or discarded meanwhile.
        """
        return list(discarded(self._engine, as_seen(self._engine, meant(self._places(selection), selection)), reason))

    def _places(self, selection: Selection) -> Sequence[Place]:
        return places(self._engine, self._adapter, self._jobs.carriers(), names=selection.names)
