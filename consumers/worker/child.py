"""A worker process: `python -m postroom.consumers.worker.child`, started by the supervisor, which tells it through a pipe what to do.

The pipe stays open. Its end is the supervisor's end, and then this process drains: it is never left behind.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from postroom.adapters.connect import connect
from postroom.adapters.errors import ConfigurationError, MissingExtra, PostroomError, Unavailable
from postroom.adapters.sql.engine import open_engine
from postroom.consumers.loading import load_jobs
from postroom.outbox.garbage import collect_seldom

from .config import BROKEN, REFUSED, UNEQUIPPED, UNREACHABLE, ChildConfig
from .foreground import run_in_foreground
from .lanes import spare_lanes
from .marks import Marks
from .stop import Stop
from .worker import Worker

if TYPE_CHECKING:
    from typing import BinaryIO

__all__ = ["main"]

_log = logging.getLogger("postroom.worker")

_CODES: tuple[tuple[type[PostroomError], int], ...] = (
    (MissingExtra, UNEQUIPPED),
    (ConfigurationError, REFUSED),
    (Unavailable, UNREACHABLE),
    (PostroomError, BROKEN),
)


def main() -> int:
    """Read the configuration, run the worker, return the exit code."""
    pipe = _own_pipe()
    config = msgspec.json.decode(pipe.readline(), type=ChildConfig)
    logging.basicConfig(level=config.log_level, format=f"%(asctime)s %(levelname)s %(name)s [{os.getpid()}] %(message)s")
    stop = Stop()
    threading.Thread(target=_drain_when_orphaned, args=(pipe, stop), name="postroom-orphan", daemon=True).start()
    try:
        return _run(config, stop)
    except PostroomError as error:
        _log.error("%s", error)
        return next(code for kind, code in _CODES if isinstance(error, kind))


def _run(config: ChildConfig, stop: Stop) -> int:
    settings = config.settings
    marks = Marks.in_file(config.marks, lanes=spare_lanes(settings.concurrency), places=settings.look_ahead)
    os.close(config.marks)
    engine, adapter = open_engine(config.database, pool_size=settings.concurrency + 4), connect(config.broker)
    worker = Worker(load_jobs(config.app), engine, adapter, settings, name=config.name, marks=marks)
    collect_seldom()
    report = run_in_foreground(worker, stop)
    _log.info("ended in good order: %s", dict(report.counts))
    if report.hanging:
        logging.shutdown()
        os._exit(0)  # their threads would keep the interpreter from ending
    adapter.close()
    engine.dispose()
    return 0


def _own_pipe() -> BinaryIO:
    """Take the pipe from standard input, which is empty from now on: what handlers start must not hold it, or read it."""
    pipe = os.fdopen(os.dup(0), "rb")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return pipe


def _drain_when_orphaned(pipe: BinaryIO, stop: Stop) -> None:
    pipe.read()
    _log.warning("the supervisor is gone")
    if not stop.asked.is_set():
        stop.ask()


if __name__ == "__main__":
    sys.exit(main())
