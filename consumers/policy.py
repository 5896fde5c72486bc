"""What a failed attempt leads to: another one after a while, or none."""

from __future__ import annotations

from postroom.adapters.errors import ConfigurationError
from postroom.adapters.numbers import flaw
from postroom.adapters.text import bounded
from postroom.outbox.backoff import Backoff
from postroom.outbox.rules import MAX_DELAY

__all__ = ["Backoff", "Fail", "Retry", "readable"]


class Retry(Exception):
    """Raise it in a handler to be tried again after `after` seconds (None: the handler's backoff). It is an attempt like any other.

    Raises ConfigurationError for an `after` that is no number of seconds from 0 to ten years: in a handler that is a failure, too.
    """

    def __init__(self, why: str = "the handler asked for a retry", *, after: float | None = None) -> None:
        if after is not None and (wrong := flaw("Retry: after", after, least=0, unit="seconds") or _too_long(after)):
            raise ConfigurationError(wrong)
        super().__init__(why)
        self.after = after


class Fail(Exception):
    """Raise it in a handler to give the job up at once, attempts left or not: it is dead-lettered with this reason."""


def readable(error: BaseException) -> str:
    """Return the text of an error as it can be stored and sent anywhere. Its class is part of it, unless the handler chose the words."""
    try:
        said = str(error)
    except BaseException as worse:  # noqa: BLE001 - an error that can't even be shown must still be stored
        said = f"(its text can't be shown: {type(worse).__name__})"
    if isinstance(error, Retry | Fail):
        return bounded(said)
    return bounded(f"{type(error).__name__}: {said}" if said else type(error).__name__)


def _too_long(after: float) -> str | None:
    return f"Retry: after must be at most {MAX_DELAY:,} seconds, not {after!r}" if after > MAX_DELAY else None
