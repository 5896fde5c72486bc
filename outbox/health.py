"""How a relay is: for readiness probes, and told to the log once for each change."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from enum import Enum

from postroom.adapters.errors import PostroomError

__all__ = ["Health", "HealthRecord", "State"]

_log = logging.getLogger(__name__)


class State(Enum):
    """What a relay is doing."""

    STOPPED = "stopped"
    """It was not started, or has ended."""
    WORKING = "working"
    """Its last round went well."""
    DEGRADED = "degraded"
    """Database or broker gave no answer in its last round; it goes on trying."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """A relay at one moment. `last_error` is the latest there was, also after it passed; `failures` are those in a row."""

    state: State = State.STOPPED
    last_error: str = ""
    failures: int = 0


class HealthRecord:
    """The health of one relay: written by its thread, read by any."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.now = Health()

    def well(self) -> None:
        """The last round went well."""
        if self.now.state is State.DEGRADED:
            _log.info("relay %s: working again after %d failed rounds", self._name, self.now.failures)
        self.now = replace(self.now, state=State.WORKING, failures=0)

    def failed(self, error: Exception) -> None:
        """The last round got no answer. What Postroom did not foresee is told with its traceback."""
        if self.now.state is not State.DEGRADED:
            unforeseen = None if isinstance(error, PostroomError) else error
            _log.warning("relay %s: degraded, trying again: %s", self._name, error, exc_info=unforeseen)
        self.now = Health(state=State.DEGRADED, last_error=str(error), failures=self.now.failures + 1)

    def stopped(self) -> None:
        """It has ended."""
        self.now = replace(self.now, state=State.STOPPED)
