"""What a relay clears away between its rounds: sent rows and finished jobs past their retention, and relays that are gone."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from sqlalchemy import Double, bindparam, delete

from postroom.adapters.errors import PostroomError
from postroom.adapters.sql.transaction import transact
from postroom.adapters.sql.types import now

from .purge import purge
from .tables import relays

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from postroom.adapters.seam import Adapter

    from .options import RelayOptions

__all__ = ["Housekeeping"]

_log = logging.getLogger(__name__)
_GONE = delete(relays).where(relays.c.until < now() - bindparam("age", type_=Double))
_REMEMBERED = 3600.0


class Housekeeping:
    """Done in small steps, so that it also gets on while there is always something to send. Safe beside any number of others."""

    def __init__(self, engine: Engine, adapter: Adapter, options: RelayOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._adapter = adapter
        self._options = options
        self._clock = clock
        self._due_at = clock()

    def step(self) -> bool:
        """When it is time, remove one small batch of everything; return whether there was more. What goes wrong is logged, and tried later."""
        if self._clock() < self._due_at:
            return False
        more = self._attempt()
        if not more:
            self._due_at = self._clock() + self._options.tidy_every
        return more

    def _attempt(self) -> bool:
        try:
            return self._remove()
        except (PostroomError, OSError) as error:
            _log.warning("housekeeping put off for %.0f s: %s", self._options.tidy_every, error)
            return False

    def _remove(self) -> bool:
        limit, age = self._options.tidy_batch, self._options.retention
        removed = [purge(self._engine, older_than=age, limit=limit), self._adapter.tidy(older_than=age, limit=limit)]
        transact(self._engine, lambda connection: connection.execute(_GONE, {"age": _REMEMBERED}))
        return max(removed) >= limit
