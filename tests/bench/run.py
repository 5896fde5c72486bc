"""Every benchmark, each beside its yardstick in the same run: `make bench`, or `python tests/bench/run.py NAME...`.

The figures of one run are only good against each other: these are ratios, with their spread, of runs that took turns.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import enqueue
import imports
import jobs
import memory
import relay
from pairs import Pair, measure
from rich.console import Console

from postroom.adapters.sql.engine import open_engine
from support import services
from support.databases import fresh_database

Pairs = Mapping[str, Callable[[str], Pair]]

ON_POSTGRESQL: Pairs = {
    "enqueue": lambda url: enqueue.pair(open_engine(url)),
    "relay": relay.pair,
    "jobs": lambda url: jobs.pair(open_engine(url, pool_size=16)),
}
ON_SQLITE: Pairs = {"enqueue-sqlite": lambda url: enqueue.pair(open_engine(url))}
REPORTS = {"imports": imports.report, "memory": memory.report}
"""What has no yardstick: told as plain figures. `memory` fills a database with a million rows, and takes minutes."""


@contextmanager
def database(kind: str) -> Iterator[str]:
    """The URL of an empty database, on a server of its own or in a file."""
    with ExitStack() as stack:
        if kind == "sqlite":
            yield f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/bench.db"
        else:
            yield stack.enter_context(fresh_database(stack.enter_context(services.running("postgres"))))


def compare(names: list[str], kind: str, pairs: Pairs, rounds: int) -> None:
    chosen = [make for name, make in pairs.items() if name in names]
    if not chosen:
        return
    console = Console(stderr=True)
    with database(kind) as url:
        for make in chosen:
            pair = make(url)
            with console.status(pair.name):
                line = measure(pair, rounds).line
            print(line, flush=True)


def main() -> None:
    everything = [*ON_SQLITE, *ON_POSTGRESQL, *REPORTS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=everything, choices=everything, help="only these (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each pair takes turns")
    options = parser.parse_args()
    print(f"{'':<46} {'postroom':>10} {'by hand':>10} {'':<8} ratio, median of {options.rounds} (lowest to highest)")
    compare(options.names, "sqlite", ON_SQLITE, options.rounds)
    compare(options.names, "postgresql", ON_POSTGRESQL, options.rounds)
    for name, report in REPORTS.items():
        if name in options.names:
            report(lambda: database("postgresql"))


if __name__ == "__main__":
    main()
