"""What must be right before a worker starts, and is told at once when it is not."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from postroom.adapters.errors import ConfigurationError
from postroom.consumers.ledger import check_retention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.adapters.seam import Adapter, Hold, Queue
    from postroom.consumers.jobs import Handler, Jobs

    from .settings import WorkerSettings

__all__ = ["beat_of", "check", "chosen_queues", "prepare_group"]


def check(jobs: Jobs, settings: WorkerSettings) -> None:
    """Raise ConfigurationError when there is nothing to work on, or the settings don't fit it."""
    if not jobs.handlers:
        raise ConfigurationError("there is no handler: declare one with @jobs.handler(...)")
    for mapper in jobs.mappers:
        if mapper.queue not in jobs.queues:
            known = ", ".join(sorted(jobs.queues))
            raise ConfigurationError(f"{mapper.where}: a mapper for queue {mapper.queue!r}, but no handler takes jobs from it; there are: {known}")
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


def prepare_group(jobs: Jobs, settings: WorkerSettings, adapter: Adapter) -> Sequence[str]:
    """Have the backend set up the group that these queues are consumed by; they are declared.

    Where it takes a delivery back after a time, raise ConfigurationError for a handler that may run longer, and return a line for each that may
    run for ever: its job would go to others while it runs, who can but wait for its end. Where that time is only assumed, one line tells of both.
    """
    carriers = jobs.carriers(settings.queues)
    holds = adapter.prepare(carriers, group=jobs.group)
    held = [(handler, holds[carrier]) for handler in jobs.handlers for carrier in [*handler.carriers][:1] if carrier in holds]
    limited = [(handler, hold) for handler, hold in held if not hold.assumed]
    if wrong := [_overrun(handler, hold) for handler, hold in limited if handler.timeout is not None and handler.timeout > hold.seconds]:
        raise ConfigurationError(wrong[0])
    certain = [_overrun(handler, hold) for handler, hold in limited if handler.timeout is None]
    return [*certain, *_doubts([(handler, hold) for handler, hold in held if hold.assumed])]


def _doubts(assumed: Sequence[tuple[Handler, Hold]]) -> Sequence[str]:
    """One line for all handlers that may run for as long as it is assumed that a delivery can be held."""
    late = [(handler, hold) for handler, hold in assumed if handler.timeout is None or handler.timeout >= hold.seconds]
    types = Counter(handler.type for handler, _ in late)
    names = ", ".join(sorted(_name(handler, alone=types[handler.type] == 1) for handler, _ in late))
    what = "handlers without a timeout below {seconds:g} s: {names}. A job that takes longer goes to others, who wait for its end: {why}"
    return [what.format(seconds=hold.seconds, names=names, why=hold.why) for _, hold in late[:1]]


def _name(handler: Handler, *, alone: bool) -> str:
    """Its type; and where its jobs come from, a topic's group with it, where another has the same type."""
    return repr(handler.type) if alone else f"{handler.type!r} of {handler.queue.name}{f'.{handler.group}' if handler.queue.groups else ''}"


def _overrun(handler: Handler, hold: Hold) -> str:
    timeout = "no timeout" if handler.timeout is None else f"a timeout of {handler.timeout:g} s"
    who = f"{handler.where}: queue {handler.queue.name!r}: the handler of {handler.type!r} has {timeout}"
    return f"{who}, and a job that takes longer than {hold.seconds:g} s goes to others, who wait for its end: {hold.why}"


def _longest_retries(handler: Handler) -> float:
    """How long the backoff can keep a job of this handler (seconds)."""
    waits, total = handler.backoff.first, 0.0
    for _ in range(handler.max_attempts - 1):
        total += min(waits, handler.backoff.cap)
        waits = min(waits * handler.backoff.factor, handler.backoff.cap)
    return total
