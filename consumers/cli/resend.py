"""The subcommand `postroom resend`: jobs that the broker has lost, from the outbox once more."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from postroom.consumers.loading import load_jobs
from postroom.consumers.resending import Overdue, resend

from .connect import broker, database
from .exits import NO
from .options import Settings, as_json, connections, duration, filled
from .output import echo_json, progress, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.consumers.resending import Resent

__all__ = ["command"]

_COLUMNS = ("QUEUE", "SENT, NOT BEGUN", "OVERDUE", "ON THE BROKER", "RESENT")


@click.command(
    epilog="""\b
Examples:
  postroom resend --dry-run                                  what would be sent again
  postroom resend --queue emails                             after somebody has deleted the queue
  postroom resend --older-than 10m --type send-receipt --limit 100

\b
The columns, for each queue with such jobs:
  SENT, NOT BEGUN  the broker confirmed them, and the ledger knows no outcome: they wait there, or are lost
  OVERDUE          those of them that were sent longer ago than --older-than
  ON THE BROKER    messages that it holds there
  RESENT           those that a relay publishes again, under their old ids

Where the broker holds as many as were not begun, all seem to wait for a worker: then nothing is sent again, and the exit code is 1 if that is so
everywhere. --force sends them all the same. A message that comes twice is recognised, and its work is done once. RabbitMQ does not tell what workers
hold unacked: a job that a busy one has fetched and not begun may be sent again too. In an ordered queue all that is outstanding behind a lost job of
its key goes with it, in order.
"""
)
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Only this queue's; may be repeated.  [default: all]")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only jobs of this type; may be repeated.")
@click.option("--older-than", type=duration, default="1h", show_default=True, metavar="DURATION", help="Only what was sent longer ago.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many, oldest first.")
@click.option(
    "--retention",
    type=duration,
    default="7d",
    show_default=True,
    metavar="DURATION",
    help="That of `postroom work`: what was sent before is left alone.",
)
@click.option("--app", "application", type=filled, metavar="MODULE:JOBS", help="This application names all groups of its topics.")
@click.option("--force", is_flag=True, help="Also where all seem to wait on the broker.")
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would be sent again.")
@as_json
@connections
def command(settings: Settings, *, application: str | None, force: bool, dry_run: bool, json: bool, **which: Any) -> int | None:  # noqa: ANN401 - click's
    """Send jobs again that were sent and that no worker has begun, where the broker has lost some."""
    jobs = load_jobs(application) if application else None
    with database(settings) as engine, broker(settings) as adapter, progress("resend") as more:
        found = resend(engine, adapter, Overdue(**which), jobs=jobs, force=force, dry_run=dry_run, progress=more)
    if json:
        for each in found:
            echo_json({**asdict(each), "waits": each.waits})
    elif found:
        table([*_COLUMNS[:-1], "WOULD BE RESENT"] if dry_run else _COLUMNS, (list(asdict(each).values()) for each in found))
    return _told(found, force=force)


def _told(found: Sequence[Resent], *, force: bool) -> int | None:
    waiting = [each.queue for each in found if each.waits and each.overdue and not force]
    if waiting:
        click.echo(
            f"postroom: left alone: {', '.join(waiting)}: the broker holds as many as were not begun, so they seem to wait for a worker; "
            "--force sends them again",
            err=True,
        )
    elif not any(each.overdue for each in found):
        click.echo("postroom: nothing is overdue", err=True)
    return NO if waiting and not any(each.resent for each in found) else None
