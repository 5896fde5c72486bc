"""Handlers for a broker that breaks and a group that changes: their queue and their group are the test's own."""

import os
import time
from dataclasses import dataclass

from effects import effects, flag
from sqlalchemy import insert

from postroom.adapters.seam import Queue
from postroom.consumers import Backoff, Context, Jobs

QUEUE = Queue(name=os.environ["APP_QUEUE"], lease=float(os.environ.get("APP_LEASE", "30")))
jobs = Jobs(group=QUEUE.name)
SOON = Backoff(first=0.05, cap=0.2)


@dataclass
class Plain:
    seconds: float = 0.0


@jobs.handler("brief", queue=QUEUE, backoff=SOON, timeout=10)
def brief(payload: Plain, context: Context) -> None:
    """Takes so many seconds; its effect commits together with `done`."""
    time.sleep(payload.seconds)
    _have_effect(context)


@jobs.handler("long", queue=QUEUE, backoff=SOON)
def long(payload: Plain, context: Context) -> None:
    """Runs until the test lets it end."""
    flag(f"started-{context.job.key}-{os.getpid()}-{time.monotonic_ns()}").touch()
    while not flag(f"let-{context.job.key}-end").exists():
        time.sleep(0.02)
    _have_effect(context)


def _have_effect(context: Context) -> None:
    context.session.execute(insert(effects), {"key": context.job.key, "attempt": context.job.attempt, "pid": os.getpid()})
