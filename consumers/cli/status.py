"""The subcommand `postroom status`: where order 4711's email is."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click

from postroom.adapters.errors import ConfigurationError, Unavailable
from postroom.consumers.dead import DISCARDED, QueuePlace, behind
from postroom.consumers.known import carriers_known
from postroom.consumers.status import status_of

from .connect import broker, database
from .exits import NO
from .options import Settings, as_json, connections
from .output import ago, clock, echo_json, moment, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Engine

    from postroom.consumers.dead import Letter
    from postroom.consumers.status import JobStatus

__all__ = ["command", "show", "what_next"]

_INSTANTS = {"enqueued_at", "sent_at", "next_at", "finished_at", "now"}
_SEARCHED = 1000
_LONG = 3600.0
"""After so many seconds a broker is suspected to have lost a job: the default of `postroom resend`."""


@click.command(
    epilog="""\b
Examples:
  postroom status order-4711           every job about order 4711
  postroom status order-4711 --json    one JSON object for each, on a line of its own

\b
What the statuses mean:
  pending    waits: in the outbox, on the broker, or for its next attempt
  running    a worker has it
  abandoned  a worker had it and vanished; the next one takes it
  done       finished, and never done again
  failed     given up after its last attempt; see `postroom dead`
  parked     the broker will not take it; see `postroom dead`

Exit code 1 when nothing is known of it.
"""
)
@click.argument("key_or_id")
@as_json
@connections
def command(settings: Settings, key_or_id: str, *, json: bool) -> int | None:
    """Where is it? Tells every job of a key (order-4711), or the one job with this id."""
    with database(settings) as engine:
        found = status_of(engine, key_or_id, find_dead=lambda queue, job: _find_dead(engine, settings, queue, job))
    if not found:
        click.echo(f"postroom: nothing is known of {key_or_id!r}: no job in outbox or ledger has this key or id", err=True)
        return NO
    if json:
        for status in found:
            echo_json(_for_json(status))
    else:
        show(found)
    return None


def _find_dead(engine: Engine, settings: Settings, queue: str, job: str) -> Letter | None:
    """A job without a handler is in no ledger, but in the dead letters: among the first 1000, if the broker can be asked."""
    with suppress(ConfigurationError, Unavailable), broker(settings) as adapter:
        known = carriers_known(engine, adapter, named=[queue])
        carriers = [carrier for carrier in known if carrier == queue or carrier.startswith(f"{queue}.")]  # of a topic, each group's
        found = chain.from_iterable(islice(behind(QueuePlace(carrier, adapter.dead_letters(carrier))), _SEARCHED) for carrier in carriers)
        return next((letter for letter in found if letter.message.id == job), None)
    return None


def _for_json(status: JobStatus) -> dict[str, Any]:
    return {name: moment(value) if name in _INSTANTS else value for name, value in asdict(status).items()}


def show(found: Sequence[JobStatus]) -> None:
    """Print a row for each. The queue is told where it tells one from another: a topic's job is in one for each group.

    So is the broker's own count where it says more than the ledger's.
    """
    several = len({status.queue for status in found}) > 1
    recounted = any((status.redeliveries or 0) > status.attempts for status in found)
    queue, count = ["QUEUE"] if several else [], ["REDELIVERIES"] if recounted else []
    table(
        ["TYPE", *queue, "STATUS", "FAILED ATTEMPTS", *count, "REPLAYS", "WHAT NEXT", "LAST ERROR", "JOB"],
        ([status.type, *([status.queue] if queue else []), *_cells(status, [status.redeliveries] if count else [])] for status in found),
    )


def _cells(status: JobStatus, count: Sequence[object]) -> list[object]:
    of = "" if status.max_attempts is None else f" of {status.max_attempts}"
    return [status.status, f"{status.attempts}{of}", *count, status.replays or None, what_next(status), status.last_error, status.id]


def what_next(status: JobStatus) -> str:
    """What the job waits for, in words."""
    until = (status.next_at or status.now) - status.now
    match status.status, status.place:
        case "done" | "failed" | "parked", _:
            return _at_its_end(status)
        case "abandoned", _:
            return f"{status.worker} has vanished, its lease ended {ago(-until)} ago; the next worker takes over"
        case "running", _:
            return f"{status.worker} runs it, under a lease for {ago(until)} more"
        case _, "outbox":
            return _in_the_outbox(status, until)
        case _:
            return f"next attempt in {ago(until)}" if until > 0 else _on_the_broker(status)


def _on_the_broker(status: JobStatus) -> str:
    waited = status.now - status.sent_at if status.sent_at is not None else 0.0
    doubt = f", {ago(waited)} since it was sent; `postroom resend` if the broker has lost it" if waited > _LONG else ""
    return f"on the broker; waits for a worker{doubt}"


def _at_its_end(status: JobStatus) -> str:
    if status.status == "done":
        return f"nothing; done since {clock(status.finished_at)}"
    gone = status.status == "failed" and (status.last_error or "").startswith(DISCARDED)
    return "nothing; it was discarded" if gone else f"postroom dead show {status.id}"


def _in_the_outbox(status: JobStatus, until: float) -> str:
    if status.behind:
        return f"in the outbox for {ago(status.now - status.enqueued_at)}; waits for job {status.behind} of its ordering key"
    if status.held:
        reason = status.held.partition(";")[0]
        return f"next try in {ago(until)}; {reason}"
    return (
        f"in the outbox; to the broker in {ago(until)}"
        if until > 0
        else f"in the outbox for {ago(status.now - status.enqueued_at)}; waits for a relay"
    )
