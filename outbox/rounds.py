"""One round of a relay, and what it must remember from one to the next.

A round looks at its lanes, reads the rows that are due, publishes them with no transaction open, and records the answers in one fenced
transaction. Wherever it is interrupted, nothing is lost: a row is `pending` until its own confirm is recorded, and sent again with the same id.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from .claim import Line
from .lanes import Lanes, Tenure
from .marks import RoundResult, settle
from .sending import send

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from sqlalchemy import Engine

    from postroom.adapters.seam import Adapter

    from .claim import Answer
    from .options import RelayOptions

__all__ = ["HANGING", "Rounds"]

_log = logging.getLogger(__name__)

HANGING = 20
"""A round that lasts so many leases hangs: its lanes are renewed no more, and go to other relays."""


class Rounds:
    """The rounds of one relay, one at a time. `name` is unique among all relays, ever. All methods raise Unavailable when the database is away."""

    def __init__(self, engine: Engine, adapter: Adapter, options: RelayOptions, *, name: str, clock: Callable[[], float], rng: random.Random) -> None:
        self._engine = engine
        self._adapter = adapter
        self._options = options
        self._name = name
        self._clock = clock
        self._rng = rng
        self._lanes = Lanes(engine, name=name, lease=options.lease, clock=clock)
        self._line = Line(engine, options, clock=clock)
        self._owed: tuple[Tenure, Sequence[Answer]] | None = None
        self._began = self._answered = clock()

    def look(self) -> Tenure:
        """Take this relay's share of the lanes; see `Lanes.look`."""
        return self._lanes.look()

    def round(self, go_on: Callable[[], bool]) -> RoundResult:
        """Do one round. Blocks for two short transactions and the broker's answers; `go_on` is asked between waves.

        The lanes of a relay that has had no answer for a lease are for others then, whose way to the broker may be another one.
        """
        self._began = self._clock()
        earlier = self._pay()
        tenure = self._lanes.look()
        batch = self._line.next(tenure)
        self._owed = tenure, [*batch.refused, *(send(self._adapter, batch.rows, go_on) if batch.rows else ())]
        result = replace(self._pay(), more=batch.more)
        if result.sent < len(batch.rows) or batch.refused:
            self._line.restart()
        if not result.outage:
            self._answered = self._clock()
        elif self._clock() - self._answered > self._options.lease:
            self._lanes.release()
        return earlier + result

    def renew(self) -> None:
        """Keep the lanes while a round takes long. For another thread."""
        if self._clock() - self._began < HANGING * self._options.lease:
            self._lanes.renew()

    def anything_due(self) -> bool:
        """Whether a row is due in any lane, whoever holds it."""
        return self._line.anything_due()

    def leave(self) -> None:
        """Record what is not recorded yet, and give the lanes back."""
        self._pay()
        self._lanes.release()

    def _pay(self) -> RoundResult:
        """Record the answers that are not recorded yet: this round's, or those of a round whose database went away meanwhile."""
        if self._owed is None:
            return RoundResult()
        tenure, answers = self._owed
        result = settle(self._engine, tenure, answers, self._options, self._rng) if answers else RoundResult()
        self._owed = None
        if result.lost:
            self._lanes.doubt()
            _log.warning("relay %s: lease lost: %d answers not recorded; the new holder of the lanes sends again", self._name, result.lost)
        return result
