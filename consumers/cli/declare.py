"""The subcommand `postroom declare`: an application's queues on the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from postroom.adapters.errors import TopologyMismatch
from postroom.consumers.loading import load_jobs

from .connect import broker
from .exits import NO
from .options import Settings, as_json, connections
from .output import echo_json, table

if TYPE_CHECKING:
    from postroom.adapters.seam import Queue

__all__ = ["command"]


@click.command(
    epilog="""\b
Examples:
  postroom declare shop:jobs              before the first deployment, or with each one
  postroom declare --passive shop:jobs    only compare; exit code 1 when something is missing or differs

A worker declares its own queues when it starts; this command does it ahead, or where workers may not.
Nothing is ever deleted, and a queue that is there with other arguments is not touched.
"""
)
@click.argument("application", metavar="MODULE:JOBS")
@click.option("--passive", is_flag=True, help="Declare nothing: compare with what is there.")
@as_json
@connections
def command(settings: Settings, application: str, *, passive: bool, json: bool) -> int | None:
    """Declare the queues of an application's handlers on the broker, with their dead-letter queues."""
    jobs = load_jobs(application)
    queues = list(jobs.queues.values())
    with broker(settings) as adapter:
        try:
            adapter.ensure(queues, passive=passive)
            adapter.prepare(jobs.carriers(), group=jobs.group, passive=passive)
        except TopologyMismatch as error:
            if not passive:
                raise
            click.echo(f"postroom: {error}", err=True)
            return NO
    _show(queues, json=json)
    return None


def _show(queues: list[Queue], *, json: bool) -> None:
    carriers = [(queue, carrier) for queue in queues for carrier in queue.carriers]
    if json:
        for queue, carrier in carriers:
            echo_json({"queue": queue.name, "carrier": carrier, "ordered": queue.ordered, "dead_letter": queue.dead_letter_of(carrier)})
    else:
        table(["QUEUE", "HELD IN", "ORDERED", "DEAD LETTERS"], [(q.name, c, "yes" if q.ordered else "no", q.dead_letter_of(c)) for q, c in carriers])
