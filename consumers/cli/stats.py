"""The subcommand `postroom stats`: how many jobs are where."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from postroom.consumers.loading import load_jobs
from postroom.consumers.stats import stats_of

from .connect import broker, database
from .options import Settings, as_json, connections, filled
from .output import ago, clock, echo_json, moment, table
from .unlisted import tell_what_is_gone, tell_what_is_unlisted

if TYPE_CHECKING:
    from postroom.consumers.stats import QueueStats, Stats

__all__ = ["command"]

_COLUMNS = ("QUEUE", "DUE", "DELAYED", "PARKED", "WAITING", "RUNNING", "DEAD", "DONE", "FAILED")
_ON_THE_BROKER = ("pending", "running", "failed")
_IN_THE_LEDGER = ("pending", "running", "done", "failed")


@click.command(
    epilog="""\b
The columns:
  DUE        in the outbox, for a relay
  DELAYED    in the outbox, for their time
  PARKED     in the outbox, refused by the broker: `postroom dead list --source outbox`
  WAITING    on the broker, for a worker
  RUNNING    on the broker, held by a worker
  DEAD       dead letters: `postroom dead list`
  DONE       keys whose work is done, as far back as the ledger remembers
  FAILED     keys whose work was given up, discarded ones too

The lag is how long the oldest row that is due has waited for a relay.

With --json, of each queue: `outbox` (due, delayed, retrying: of the due ones those that the broker would not take yet, parked, lag in seconds),
`broker` (pending, running, failed: the dead letters) and `ledger` (pending, running, done, failed), every count always there.

\b
Examples:
  postroom stats
  postroom stats --json | jq '.queues[] | {queue, dead: .broker.failed}'
"""
)
@click.option(
    "--app", "application", type=filled, metavar="MODULE:JOBS", help="Ask about this application's queues: for a broker that can't list its own."
)
@as_json
@connections
def command(settings: Settings, application: str | None, *, json: bool) -> None:
    """How many jobs are where, and how old the oldest is."""
    carriers = load_jobs(application).carriers() if application else ()
    with database(settings) as engine, broker(settings) as adapter:
        stats = stats_of(engine, adapter, carriers=carriers)
        if not (application or stats.gone):
            tell_what_is_unlisted(adapter, adapter.carriers())
    tell_what_is_gone(stats.gone)
    if json:
        echo_json(_for_json(stats))
        return
    table(_COLUMNS, map(_row, stats.queues))
    click.echo(f"lag: {ago(stats.lag)}" + (f", since {clock(stats.now - stats.lag)}" if stats.lag else ""))


def _row(queue: QueueStats) -> list[object]:
    broker = [queue.broker.get(status, 0) for status in _ON_THE_BROKER]
    return [
        queue.queue,
        queue.outbox.due,
        queue.outbox.delayed,
        queue.outbox.parked,
        *broker,
        queue.ledger.get("done", 0),
        queue.ledger.get("failed", 0),
    ]


def _for_json(stats: Stats) -> dict[str, Any]:
    oldest = moment(stats.now - stats.lag) if stats.lag else None
    return {"queues": [_queue_for_json(queue) for queue in stats.queues], "oldest_due": oldest, "lag": round(stats.lag, 3)}


def _queue_for_json(queue: QueueStats) -> dict[str, Any]:
    return {
        "queue": queue.queue,
        "outbox": asdict(queue.outbox),
        "broker": {status: queue.broker.get(status, 0) for status in _ON_THE_BROKER},
        "ledger": {status: queue.ledger.get(status, 0) for status in _IN_THE_LEDGER},
    }
