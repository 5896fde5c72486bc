"""What a failed attempt leads to: another one after a while, or none."""

from __future__ import annotations

from postroom.adapters.text import bounded
from postroom.outbox.backoff import Backoff

__all__ = ["Backoff", "Fail", "Retry", "readable"]


class Retry(Exception):
    """Raise it in a handler to be tried again after `after` seconds (None: the handler's backoff). It is an attempt like any other."""

    def __init__(self, why: str = "the handler asked for a retry", *, after: float | None = None) -> None:
        super().__init__(why)
        self.after = after


class Fail(Exception):
    """Raise it in a handler to give the job up at once, attempts left or not: it is dead-lettered with this reason."""


def readable(error: BaseException) -> str:
    """Return the text of an error as it can be stored and sent anywhere. Its class is part of it, unless the handler chose the words."""
    try:
        said = str(error)
    except Exception as worse:  # noqa: BLE001 - an error that can't even be shown must still be stored
        said = f"(its text can't be shown: {type(worse).__name__})"
    if isinstance(error, Retry | Fail):
        return bounded(said)
    return bounded(f"{type(error).__name__}: {said}" if said else type(error).__name__)
