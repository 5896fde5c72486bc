"""The handlers of `faulted`, and some whose every start is on record, for brokers that take a delivery back while its handler runs."""

import os
import time

from effects import flag, write
from faulted import QUEUE, SOON, Plain, jobs

from postroom.consumers import Context


@jobs.handler("guarded", queue=QUEUE, backoff=SOON, timeout=60)
def guarded(payload: Plain, context: Context) -> None:
    """Takes so many seconds, and then as long as the test wants this attempt, or all of them, to take."""
    _note(context)
    time.sleep(payload.seconds)
    holds = flag(f"hold-{context.job.key}"), flag(f"hold-{context.job.key}-{context.job.attempt}")
    while any(hold.exists() for hold in holds):
        time.sleep(0.02)
    write(context.session.connection(), context.job.key, context.job.attempt)


@jobs.handler("endless", queue=QUEUE, backoff=SOON, timeout=2.0, max_attempts=2)
def endless(payload: Plain, context: Context) -> None:
    """Never ends, so its time is up."""
    _note(context)
    time.sleep(payload.seconds)


def _note(context: Context) -> None:
    with flag(f"runs-{context.job.key}").open("a") as runs:
        runs.write(f"{os.getpid()}\n")
