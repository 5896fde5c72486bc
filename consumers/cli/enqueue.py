"""The subcommand `postroom enqueue`: one job into the outbox."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

from postroom.adapters.errors import InvalidMessage
from postroom.adapters.seam import Queue
from postroom.adapters.sql.transaction import transact
from postroom.consumers.loading import load_jobs
from postroom.outbox import Outbox
from postroom.outbox.rows import insert_rows

from .connect import database
from .options import Settings, connections, duration, filled
from .output import echo_json

__all__ = ["command"]


@click.command(
    epilog="""\b
Examples:
  postroom enqueue send-receipt --queue emails --key order-4711 --payload '{"order_id": 4711}'
  postroom enqueue send-receipt --app shop:jobs --key order-4711 --payload '{"order_id": 4711}'
  postroom enqueue thank --app orders:jobs --priority high --payload '{"id": 4711, "customer": 8}'
  postroom enqueue report --queue reports --delay 2h --payload - < report.json

A service enqueues in its own transaction, with `Outbox.enqueue`; this command is for trying things out and for repairs.
"""
)
@click.argument("job_type", metavar="TYPE")
@click.option("--key", metavar="KEY", help="What the job is about: one job of its type is done for each key.  [default: the job's id]")
@click.option("--payload", default="{}", show_default=True, metavar="JSON", help="The payload; - reads it from standard input.")
@click.option("--queue", metavar="QUEUE", help="Where it goes.  [default: the queue of its handler in --app]")
@click.option("--delay", type=duration, default="0s", metavar="DURATION", help="Not before so long from now: 10s, 5m, 2h.")
@click.option("--priority", type=filled, metavar="PRIORITY", help="Which of the priorities that the queue is declared with in --app.")
@click.option(
    "--app", "application", type=filled, metavar="MODULE:JOBS", help="Take the queue's declaration from here: needed for order, a topic, a priority."
)
@connections
def command(settings: Settings, job_type: str, **options: Any) -> None:  # noqa: ANN401 - the options above
    """Put one job into the outbox, and print it as JSON with its id."""
    queue = _queue(options["application"], job_type, options["queue"], options["priority"])
    payload = _payload(options["payload"])
    row = Outbox(queue=queue).row(job_type, payload, key=options["key"], priority=options["priority"], delay=options["delay"])
    with database(settings) as engine:
        transact(engine, lambda connection: insert_rows(connection, [row]))
    echo_json({name: row[name] for name in ("id", "type", "key", "queue")})


def _queue(application: str | None, job_type: str, name: str | None, priority: str | None) -> Queue:
    if application is None:
        if name is None:
            raise click.UsageError("where does it go? Name its queue with --queue, or with --app the application that has a handler for it")
        if priority is not None:
            raise click.UsageError("--priority needs --app: which priorities a queue has, and where their jobs are, stands in its declaration")
        return Queue(name=name)
    jobs = load_jobs(application)
    found = jobs.queue_of(job_type) if name is None else jobs.queues.get(name)
    if found is None:
        missing = f"no handler for {job_type!r}" if name is None else f"no queue {name!r}"
        raise click.UsageError(f"{application} has {missing}; its queues are {', '.join(sorted(jobs.queues)) or 'none'}")
    return found


def _payload(text: str) -> Any:  # noqa: ANN401 - any JSON
    try:
        return msgspec.json.decode(sys.stdin.buffer.read() if text == "-" else text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidMessage(f"payload: this is not JSON: {error}") from None
