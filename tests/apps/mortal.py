"""Handlers that are killed, once, at every place where a worker can be killed."""

import os
import threading
import time
from dataclasses import dataclass

from effects import die, effects, first_time, flag, record
from sqlalchemy import insert

from postroom.adapters.seam import Queue
from postroom.consumers import Backoff, Context, Jobs
from postroom.consumers.ledger import Finish
from postroom.consumers.worker.committer import Committer
from postroom.consumers.worker.settler import Settler
from postroom.consumers.worker.work import Receipt, Work

jobs = Jobs()
SOON = Backoff(first=0.05, cap=0.2)
BRIEF = Queue(name="brief", lease=1.5)
company = threading.Semaphore(0)


@dataclass
class Plain:
    number: int = 0


@dataclass
class DeadlyToRead:
    """The process dies while the payload is converted: the job is begun in the ledger, its handler has not started to do anything."""

    def __post_init__(self) -> None:
        if first_time("read"):
            die()


@jobs.handler("die-before-the-handler", queue="work", backoff=SOON)
def die_before(payload: DeadlyToRead, context: Context) -> None:
    record(context.job.key, context.job.attempt)


@jobs.handler("die-in-the-handler", queue="work", backoff=SOON)
def die_in(payload: Plain, context: Context) -> None:
    if first_time("in"):
        die()
    record(context.job.key, context.job.attempt)


@jobs.handler("die-after-the-effect", queue="work", backoff=SOON)
def die_after(payload: Plain, context: Context) -> None:
    """The effect is in the attempt's transaction, and the process dies before that commits."""
    context.session.execute(insert(effects), {"key": context.job.key, "attempt": context.job.attempt, "pid": os.getpid()})
    context.session.flush()
    if first_time("after"):
        die()


@jobs.handler("die-before-the-ack", queue="work", backoff=SOON)
def die_before_ack(payload: Plain, context: Context) -> None:
    """Effect and `done` are committed, and the process dies before the queue hears of it."""
    context.session.execute(insert(effects), {"key": context.job.key, "attempt": context.job.attempt, "pid": os.getpid()})
    Settler.ack = _die_instead_once  # type: ignore[method-assign]


@jobs.handler("die-before-the-finish", queue="work", max_attempts=1, backoff=SOON)
def die_before_finish(payload: Plain, context: Context) -> None:
    """It returns, and the process dies before anybody hears of it."""
    record(context.job.key, context.job.attempt)
    Committer.hand_in = _die_before_the_finish  # type: ignore[method-assign]


@jobs.handler("die-always", queue="work", max_attempts=3, backoff=SOON)
def die_always(payload: Plain, context: Context) -> None:
    record(context.job.key, context.job.attempt)
    os._exit(1)


@jobs.handler("fine", queue="work", max_attempts=3, backoff=SOON)
def fine(payload: Plain, context: Context) -> None:
    record(context.job.key, context.job.attempt)


@jobs.handler("long", queue="work", backoff=SOON)
def long(payload: Plain, context: Context) -> None:
    """Runs until the test lets it end."""
    flag(f"started-{context.job.key}-{context.job.attempt}").touch()
    while not flag(f"let-{context.job.key}-end").exists():
        time.sleep(0.02)
    record(context.job.key, context.job.attempt)


@jobs.handler("die-in-company", queue="work", max_attempts=3, backoff=SOON)
def die_in_company(payload: Plain, context: Context) -> None:
    """Dies beside another handler, or alone when none comes."""
    company.acquire(timeout=0.7)
    os._exit(1)


@jobs.handler("neighbour", queue="work", max_attempts=2, backoff=SOON)
def neighbour(payload: Plain, context: Context) -> None:
    company.release()
    time.sleep(1)
    record(context.job.key, context.job.attempt)


@jobs.handler("busy", queue=BRIEF, backoff=SOON)
def busy(payload: Plain, context: Context) -> None:
    """Computes for so many tenths of a second, and never waits for anything."""
    end = time.monotonic() + payload.number / 10
    while time.monotonic() < end:
        sum(range(1000))
    record(context.job.key, context.job.attempt)


_ack = Settler.ack


def _die_before_the_finish(_self: Committer, _work: Work, _finish: Finish) -> None:
    die()


def _die_instead_once(self: Settler, receipts: list[Receipt]) -> None:
    if first_time("ack"):
        die()
    _ack(self, receipts)
