"""A worker in the foreground: the main thread listens to signals, the worker runs beside it."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

from .stop import Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .report import Report
    from .worker import Worker

__all__ = ["Ended", "Signalled", "run_in_foreground", "signals_to"]

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Signalled:
    """A SIGTERM or SIGINT has come."""

    number: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The worker has ended: with a report, or with what it raised."""

    report: Report | None = None
    error: BaseException | None = None


Event: TypeAlias = Signalled | Ended


@contextmanager
def signals_to(note: Callable[[Signalled], object]) -> Iterator[None]:
    """Tell `note` of SIGTERM and SIGINT instead of dying of them. It must take no lock (`SimpleQueue.put` takes none). Only in the main thread."""
    before = {number: signal.signal(number, lambda number, _frame: note(Signalled(number)) and None) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_in_foreground(worker: Worker, stop: Stop | None = None) -> Report:
    """Run `worker` until it ends by itself or a signal stops it: the first SIGTERM or SIGINT drains, a second one hurries.

    Blocks; only in the main thread. Raises what `Worker.run` raises.
    """
    stop = stop or Stop()
    events: SimpleQueue[Event] = SimpleQueue()
    number: int | None = None
    with signals_to(events.put):
        threading.Thread(target=_run, args=(worker, stop, events), name="postroom-worker", daemon=True).start()
        while isinstance(event := events.get(), Signalled):
            number = number or event.number
            stop.ask()
    if event.report is None:
        raise event.error or AssertionError
    return replace(event.report, signal=number)


def _run(worker: Worker, stop: Stop, events: SimpleQueue[Event]) -> None:
    try:
        events.put(Ended(report=worker.run(stop)))
    except BaseException as error:  # noqa: BLE001 - it is raised again in the main thread
        events.put(Ended(error=error))
