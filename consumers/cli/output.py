"""How answers look: tables, colour and progress bars on a terminal, aligned plain lines in a pipe, JSON when asked."""

from __future__ import annotations

import json
import sys
import threading
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rich.progress import Progress

__all__ = ["COLOURS", "LOG_FORMAT", "ago", "clock", "countdown", "echo_json", "moment", "progress", "table", "visible"]

COLOURS = {"done": "green", "sent": "green", "failed": "red", "parked": "red", "running": "yellow", "abandoned": "yellow", "pending": "cyan"}
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_WHOLE = {"FOR EXAMPLE", "ID", "JOB", "KEY", "QUEUE", "SINCE", "STATUS", "TYPE"}
"""Columns that are copied or compared: never broken over lines; what is said in words makes room for them."""
_STEPS = ((86400.0, "d"), (3600.0, "h"), (60.0, "m"), (1.0, "s"))


def echo_json(value: Mapping[str, Any]) -> None:
    """One object, on one line: a list is a line for each, ready for `jq` and `grep`."""
    click.echo(json.dumps(value, ensure_ascii=False))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under their columns; None is an empty cell. What would move the cursor is shown as it is written in Python."""
    cells = [["" if cell is None else visible(str(cell)) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(columns, cells)
    else:
        _plain_table(columns, cells)


def visible(text: str, *, keep: str = "") -> str:
    """Return `text` with each character that can't be seen, or does something to a terminal, escaped; those in `keep` stay."""
    return "".join(char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text)


def _plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[index]) for row in [columns, *rows]) for index in range(len(columns))]
    for row in [columns, *rows]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - rich takes longer to load than most commands take to answer
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    shown = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        shown.add_column(column, no_wrap=column in _WHOLE, overflow="fold")
    for row in rows:
        shown.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in row))
    Console().print(shown)


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Give a function that is told of each `n` more done: a bar on a terminal, nothing in a pipe. The bar is on stderr."""
    if not sys.stderr.isatty():
        yield lambda _more: None
        return
    from rich.console import Console  # noqa: PLC0415 - as above
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda more: bar.advance(task, more)


@contextmanager
def countdown(label: str, left: Callable[[], int]) -> Iterator[None]:
    """While the block runs, show on a terminal how many are `left`, asked twice a second from a thread of its own; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console  # noqa: PLC0415 - as above
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

    ended = threading.Event()
    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=Console(stderr=True), transient=True) as bar:
        watcher = threading.Thread(target=_count_down, args=(bar, label, left, ended), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()


def _count_down(bar: Progress, label: str, left: Callable[[], int], ended: threading.Event) -> None:
    most, task = 0, bar.add_task(label, total=None)
    while not ended.wait(0.5):
        with suppress(Exception):  # a bar that can't be drawn now must not end what it shows
            now = left()
            most = max(most, now)
            bar.update(task, total=most, completed=most - now)


def moment(when: float | None) -> str | None:
    """Return an instant for JSON: ISO 8601, UTC, milliseconds."""
    return None if when is None else datetime.fromtimestamp(when, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock(when: float | None) -> str | None:
    """Return an instant for a person: date and time where they are."""
    return None if when is None else datetime.fromtimestamp(when, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def ago(seconds: float) -> str:
    """Return a length of time for a person, in its two largest units: 4s, 2m 5s, 3d 4h."""
    left, parts = max(seconds, 0.0), []
    for size, unit in _STEPS:
        if left >= size:
            parts.append(f"{int(left // size)}{unit}")
            left %= size
    return " ".join(parts[:2]) or "0s"
