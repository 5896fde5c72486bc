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
import kafka
import memory
import rabbitmq
import relay
from pairs import LeftOut, Pair, measure
from rich.console import Console

from postroom.adapters.sql.engine import open_engine
from postroom.outbox.garbage import collect_seldom
from support import services
from support.databases import fresh_database

Pairs = Mapping[str, Callable[[str, str], Pair]]
"""By name, how to make a pair from the URLs of a database and of a broker (empty where there is none)."""

ON_POSTGRESQL: Pairs = {
    "enqueue": lambda url, _: enqueue.pair(open_engine(url)),
    "relay": lambda url, _: relay.pair(url),
    "jobs": lambda url, _: jobs.pair(open_engine(url, pool_size=16)),
}
ON_SQLITE: Pairs = {"enqueue-sqlite": lambda url, _: enqueue.pair(open_engine(url))}
ON_RABBITMQ: Pairs = {
    "rabbitmq-publish": lambda _, broker: rabbitmq.publish_and_pika(broker),
    "rabbitmq-relay": lambda url, broker: rabbitmq.relay_and_pika(open_engine(url), broker),
    "rabbitmq-relay-none": lambda url, broker: rabbitmq.relay_and_none(open_engine(url), broker),
    "rabbitmq-jobs": lambda url, broker: rabbitmq.jobs_and_pika(open_engine(url, pool_size=16), broker),
    "rabbitmq-dramatiq": lambda url, broker: rabbitmq.jobs_and_dramatiq(open_engine(url, pool_size=16), broker),
}
ON_KAFKA: Pairs = {
    "kafka-publish": lambda _, broker: kafka.publish_and_produce(broker),
    "kafka-relay": lambda url, broker: kafka.relay_and_no_broker(open_engine(url), url, broker),
    "kafka-jobs": lambda url, broker: kafka.jobs_and_consumer(open_engine(url, pool_size=16), broker),
    "kafka-share": lambda url, broker: kafka.jobs_and_share_consumer(open_engine(url, pool_size=16), broker),
}
REPORTS: Mapping[str, Callable[[], None]] = {
    "imports": imports.report,
    "rabbitmq-blocking": lambda: _with(rabbitmq.report_blocking, "rabbitmq"),
    "memory": lambda: _with(memory.report, "postgresql", "postgresql"),
    "rabbitmq-memory": lambda: _with(memory.report_rabbitmq, "postgresql", "rabbitmq"),
    "kafka-memory": lambda: _with(memory.report_kafka, "postgresql", "kafka"),
}
"""What has no yardstick: told as plain figures. Those of memory fill a database and a broker with up to a million rows, and take minutes."""


@contextmanager
def server(kind: str) -> Iterator[str]:
    """The URL of an empty database, on a server of its own or in a file; or of a broker of its own; or nothing."""
    with ExitStack() as stack:
        if kind == "sqlite":
            yield f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/bench.db"
        elif kind == "postgresql":
            yield stack.enter_context(fresh_database(stack.enter_context(services.running("postgres"))))
        else:
            yield stack.enter_context(services.running(kind)) if kind else ""


def compare(names: list[str], pairs: Pairs, rounds: int, *, database: str, broker: str = "") -> None:
    chosen = [make for name, make in pairs.items() if name in names]
    if not chosen:
        return
    console = Console(stderr=True)
    with server(database) as url, server(broker) as broker_url:
        for make in chosen:
            print(_line(make, url, broker_url, rounds, console), flush=True)


def _line(make: Callable[[str, str], Pair], url: str, broker: str, rounds: int, console: Console) -> str:
    try:
        pair = make(url, broker)
    except LeftOut as missing:
        return f"left out: {missing}"
    with console.status(pair.name):
        return measure(pair, rounds).line


def _with(report: Callable[..., None], *kinds: str) -> None:
    with ExitStack() as stack:
        report(*(stack.enter_context(server(kind)) for kind in kinds))


def main() -> None:
    everything = [*ON_SQLITE, *ON_POSTGRESQL, *ON_RABBITMQ, *ON_KAFKA, *REPORTS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=everything, choices=everything, help="only these (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each pair takes turns")
    options = parser.parse_args()
    collect_seldom()  # as in the processes of `postroom work` and `postroom relay`; what is beside them has the good of it, too
    print(f"{'':<50} {'postroom':>10} {'beside':>10} {'':<8} ratio, median of {options.rounds} (lowest to highest)")
    compare(options.names, ON_SQLITE, options.rounds, database="sqlite")
    compare(options.names, ON_POSTGRESQL, options.rounds, database="postgresql")
    compare(options.names, ON_RABBITMQ, options.rounds, database="postgresql", broker="rabbitmq")
    compare(options.names, ON_KAFKA, options.rounds, database="postgresql", broker="kafka")
    for name, report in REPORTS.items():
        if name in options.names:
            report()


if __name__ == "__main__":
    main()
