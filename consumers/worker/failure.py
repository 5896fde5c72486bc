"""What an exception in a handler means for its job."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from postroom.consumers.ledger.answers import Failed
from postroom.consumers.payload import Misfit
from postroom.consumers.policy import Fail, Retry, readable

from .work import claim_of

if TYPE_CHECKING:
    import random

    from .work import Work

__all__ = ["failed", "failure"]

_log = logging.getLogger("postroom.worker")


def failure(work: Work, error: BaseException, rng: random.Random) -> Failed:
    """Return the finish of an attempt that ended with `error`: Fail and a misfit are final, Retry may choose the delay, else the backoff does."""
    final = isinstance(error, Fail | Misfit)
    chosen = error.after if isinstance(error, Retry) else None
    delay = work.handler.backoff.delay(work.attempt.attempt, rng) if chosen is None else chosen
    text = str(error) if isinstance(error, Misfit) else readable(error)
    if not isinstance(error, Misfit):  # which is told once, as a dead letter
        _log.warning("%s: attempt %d failed: %s", work, work.attempt.attempt, text, exc_info=None if isinstance(error, Fail | Retry) else error)
    return failed(work, text, delay=delay, final=final)


def failed(work: Work, error: str, *, delay: float = 0.0, final: bool = False) -> Failed:
    """Return the finish of an attempt that failed with this text."""
    return Failed(started=work.attempt, claim=claim_of(work), error=error, delay=delay, final=final)
