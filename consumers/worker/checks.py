"""What must be right before a worker starts, and is told at once when it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.adapters.errors import ConfigurationError
from postroom.consumers.ledger import check_retention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.adapters.seam import Queue
    from postroom.consumers.jobs import Handler, Jobs

    from .settings import WorkerSettings

__all__ = ["beat_of", "check", "chosen_queues"]


def check(jobs: Jobs, settings: WorkerSettings) -> None:
    """Raise ConfigurationError when there is nothing to work on, or the settings don't fit it."""
    if not jobs.handlers:
        raise ConfigurationError("there is no handler: declare one with @jobs.handler(...)")
    beat_of(jobs, settings)
    paths = [_longest_retries(handler) for handler in jobs.handlers]
    check_retention(settings.retention, max(*paths, settings.relay.retention if settings.relay else 0.0))


def chosen_queues(jobs: Jobs, settings: WorkerSettings) -> Sequence[Queue]:
    """The queues and topics that a worker with these settings works on. Raises ConfigurationError for a name that no handler has."""
    carriers = set(jobs.carriers(settings.queues))
    return [queue for queue in jobs.queues.values() if carriers & set(queue.carriers)]


def beat_of(jobs: Jobs, settings: WorkerSettings) -> float:
    """How often to renew: so that two beats may be lost before the shortest lease of all runs out."""
    return settings.beat_for(min(queue.lease for queue in chosen_queues(jobs, settings)))


def _longest_retries(handler: Handler) -> float:
    """How long the backoff can keep a job of this handler (seconds)."""
    waits, total = handler.backoff.first, 0.0
    for _ in range(handler.max_attempts - 1):
        total += min(waits, handler.backoff.cap)
        waits = min(waits * handler.backoff.factor, handler.backoff.cap)
    return total
