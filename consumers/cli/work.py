"""The subcommand `postroom work`: an application's handlers, run."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from postroom.adapters.errors import ConfigurationError
from postroom.adapters.sql import schema
from postroom.adapters.urls import scheme_of
from postroom.consumers.ledger.tables import ledger
from postroom.consumers.loading import load_jobs
from postroom.consumers.worker import Supervisor, Worker, WorkerSettings, run_in_foreground
from postroom.outbox import tables as outbox
from postroom.outbox.options import RelayOptions

from .connect import broker, database
from .exits import NO
from .held import held_after, reasons
from .options import Settings, as_json, connections, duration, names
from .output import LOG_FORMAT, countdown, echo_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from sqlalchemy import Engine

    from postroom.adapters.seam import Adapter
    from postroom.consumers.jobs import Jobs
    from postroom.consumers.worker import Report

__all__ = ["command"]

_DEFAULTS = WorkerSettings()
Command = TypeVar("Command", bound="Callable[..., Any]")

Ended: TypeAlias = "tuple[Report, Mapping[str, int]]"
"""How the work ended, and what is left in the outbox though it was to be sent: how many, for each reason."""

_LEVELS = ["debug", "info", "warning", "error"]


def _number(name: str, hint: str, default: int) -> Callable[[Command], Command]:
    return click.option(name, type=click.IntRange(min=1), default=default, show_default=True, metavar="N", help=hint)


def _duration(name: str, hint: str, default: str) -> Callable[[Command], Command]:
    return click.option(name, type=duration, default=default, show_default=True, metavar="DURATION", help=hint)


@click.command(
    epilog="""\b
Examples:
  postroom work shop:jobs                              the handlers of `jobs` in shop.py, in one process
  postroom work shop:jobs --processes 4 --concurrency 16
  postroom work shop:jobs --queues emails,invoices     only these
  postroom work shop:jobs --drain                      end when all is quiet; exit code 1 if a job was given up meanwhile, or still waits

--drain is quiet when these queues and their rows in the outbox are empty but for jobs that were enqueued with a delay: retries are waited for.

SIGTERM or Ctrl-C drains: no new jobs are taken, running handlers may end within --grace, what was not begun is handed back uncharged, and the
exit code is 143 or 130. A second signal does not wait for the handlers. Killed outright, it loses no job: others take over when the lease ends.
"""
)
@click.argument("application", metavar="MODULE:JOBS")
@_number("--processes", "How many processes.", 1)
@_number("--concurrency", "Handlers at once in each process.", _DEFAULTS.concurrency)
@click.option("--queues", type=names, default=None, metavar="A,B", help="Only these queues.  [default: all that have a handler]")
@_duration("--lease", "How long a worker that vanished keeps its jobs.", "30s")
@_duration("--grace", "How long running handlers may take to end once a stop was asked.", "30s")
@_number("--prefetch", "Jobs held at once by each process.", _DEFAULTS.prefetch)
@_duration("--retention", "How long the ledger remembers what is done.", "7d")
@click.option("--relay/--no-relay", default=True, help="Also send what waits in the outbox of this database.  [default: relay]")
@click.option("--drain", is_flag=True, help="End when there is nothing to do any more.")
@click.option("--log-level", type=click.Choice(_LEVELS), help="What is logged on standard error.  [default: info; a drain on a terminal shows a bar]")
@as_json
@connections
def command(settings: Settings, application: str, *, processes: int, log_level: str | None, relay: bool, json: bool, **options: Any) -> int:  # noqa: ANN401
    """Run the handlers of an application."""
    jobs = load_jobs(application)
    wanted = WorkerSettings(relay=RelayOptions() if relay else None, **{**options, "queues": options["queues"] or ()})
    has_bar = wanted.drain and log_level is None and sys.stderr.isatty()  # log lines would tear it
    level = logging.CRITICAL if has_bar else logging.getLevelNamesMapping()[(log_level or "info").upper()]
    logging.basicConfig(level=level, format=LOG_FORMAT)
    run = _here if scheme_of(settings.broker_url) == "memory" else partial(_in_processes, application, log_level=level)
    with database(settings, connections=wanted.concurrency + 4) as engine, _bar(settings, jobs, wanted) if has_bar else nullcontext():
        schema.require(engine, (ledger, *outbox.TABLES))  # the processes wait for a database that goes away later; at the start somebody looks on
        report, waiting = run(settings, engine, jobs, wanted, processes=processes)
    return _told(report, waiting, wanted, json=json)


def _here(settings: Settings, engine: Engine, jobs: Jobs, wanted: WorkerSettings, *, processes: int) -> Ended:
    """Queues in this process's memory are seen by no other process: the worker runs in this one."""
    if processes > 1:
        raise ConfigurationError("memory: is seen by one process only; for --processes name a broker that all of them see")
    with broker(settings) as adapter:
        worker = Worker(jobs, engine, adapter, wanted)
        _say_so(jobs, wanted)
        report = run_in_foreground(worker)
        return report, _held(engine, adapter, report, jobs, wanted)


def _in_processes(
    application: str, settings: Settings, engine: Engine, jobs: Jobs, wanted: WorkerSettings, *, processes: int, log_level: int
) -> Ended:
    urls = {"database": settings.database_url, "broker": settings.broker_url}
    with broker(settings) as adapter:
        supervisor = Supervisor(application, jobs, **urls, processes=processes, settings=wanted, log_level=log_level)
        report = supervisor.run(connected=partial(_say_so, jobs, wanted))
        return report, _held(engine, adapter, report, jobs, wanted)


def _say_so(jobs: Jobs, wanted: WorkerSettings) -> None:
    click.echo(f"postroom: working on {', '.join(jobs.carriers(wanted.queues))}; Ctrl-C stops it in good order", err=True)


def _held(engine: Engine, adapter: Adapter, report: Report, jobs: Jobs, wanted: WorkerSettings) -> Mapping[str, int]:
    """After a drain, what its relay could not send."""
    return held_after(engine, adapter, jobs.carriers(wanted.queues)) if wanted.drain and wanted.relay and not report.signal else {}


def _told(report: Report, waiting: Mapping[str, int], wanted: WorkerSettings, *, json: bool) -> int:
    if json:
        echo_json({"failed": report.failed, "held": sum(waiting.values()), "signal": report.signal})
    elif wanted.drain and not report.signal:
        quiet = "not all is quiet" if waiting else "all is quiet"
        click.echo(f"{quiet}; given up meanwhile: {report.failed}" + ("; see `postroom dead list`" if report.failed else ""))
        if waiting:
            click.echo(reasons(waiting))
    if report.signal:
        return 128 + report.signal
    return NO if wanted.drain and (report.failed or waiting) else 0


@contextmanager
def _bar(settings: Settings, jobs: Jobs, wanted: WorkerSettings) -> Iterator[None]:
    """While a drain runs, show how much is left on the broker."""
    with broker(settings) as adapter, countdown("drain", lambda: _left(adapter, jobs.carriers(wanted.queues))):
        yield


def _left(adapter: Adapter, carriers: Iterable[str]) -> int:
    depths = [adapter.depth(carrier) for carrier in carriers]
    return sum(depth["pending"] + depth["running"] for depth in depths)
