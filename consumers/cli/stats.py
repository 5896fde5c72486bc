"""The subcommand `postroom stats`: how many jobs are where."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from postroom.consumers.stats import stats_of

from .connect import broker, database
from .load import load_jobs
from .options import Settings, as_json, connections
from .output import ago, clock, echo_json, moment, table

if TYPE_CHECKING:
    from postroom.consumers.stats import QueueStats, Stats

__all__ = ["command"]

_COLUMNS = ("QUEUE", "IN OUTBOX", "PARKED", "WAITING", "RUNNING", "DEAD", "DONE", "FAILED")


@click.command(
    epilog="""\b
The columns:
  IN OUTBOX   committed, and not sent yet: delayed, or waiting for a relay
  PARKED      refused by the broker: `postroom dead list --source outbox`
  WAITING     on the broker, for a worker
  RUNNING     on the broker, held by a worker
  DEAD        dead letters: `postroom dead list`
  DONE        keys whose work is done, as far back as the ledger remembers
  FAILED      keys whose work was given up

The lag is how long the oldest row that is due has waited for a relay.
"""
)
@click.option("--app", "application", metavar="MODULE:JOBS", help="Ask about this application's queues: for a broker that can't list its own.")
@as_json
@connections
def command(settings: Settings, application: str | None, *, json: bool) -> None:
    """How many jobs are where, and how old the oldest is."""
    carriers = load_jobs(application).carriers() if application else ()
    with database(settings) as engine, broker(settings) as adapter:
        stats = stats_of(engine, adapter, carriers=carriers)
    if json:
        echo_json(_for_json(stats))
        return
    table(_COLUMNS, map(_row, stats.queues))
    click.echo(f"lag: {ago(stats.lag)}" + (f", since {clock(stats.oldest_due)}" if stats.oldest_due else ""))


def _row(queue: QueueStats) -> list[object]:
    counts = [queue.outbox.get("pending", 0), queue.outbox.get("parked", 0)]
    counts += [queue.broker.get(status, 0) for status in ("pending", "running", "failed")]
    return [queue.queue, *counts, queue.ledger.get("done", 0), queue.ledger.get("failed", 0)]


def _for_json(stats: Stats) -> dict[str, Any]:
    return {"queues": [asdict(queue) for queue in stats.queues], "oldest_due": moment(stats.oldest_due), "lag": round(stats.lag, 3)}
