"""The relay on PostgreSQL beside a hand-written loop that claims, sends and marks; neither has a broker.

Run it by itself: python tests/bench/relay.py postgresql://user:password@host/database [--rows 20000] [--waiting 1000000]
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Sequence

import psycopg
from pairs import Pair, measure
from sqlalchemy import Engine, text

from postroom.adapters.seam import Capabilities, Message, Outcome, Verdict
from postroom.adapters.sql.engine import open_engine
from postroom.adapters.sql.schema import create
from postroom.outbox.envelope import Envelope
from postroom.outbox.options import RelayOptions
from postroom.outbox.relay import Relay
from postroom.outbox.rows import build_row

BATCH = RelayOptions().batch

_FILL = """
INSERT INTO postroom_outbox (id, queue, type, key, ordering_key, lane, ordered, body, headers, status, enqueued_at, available_at, attempts)
SELECT :stamp || lpad(to_hex(n), 16, '0'), 'emails', 'send-receipt', 'order-' || :stamp || n, 'order-' || :stamp || n, n % 64, false,
       convert_to('{"order_id": ' || n || '}', 'UTF8'), :headers, 'pending', :at + n * 1e-4, :at + n * 1e-4, 0
FROM generate_series(1, :rows) AS n
"""

_CLAIM = """
UPDATE postroom_outbox SET status = 'claimed', last_error = %s WHERE seq IN (
    SELECT seq FROM postroom_outbox WHERE status = 'pending' AND retry_at IS NULL AND available_at <= extract(epoch FROM now())
    ORDER BY retry_at, available_at, seq LIMIT %s FOR UPDATE SKIP LOCKED)
RETURNING seq, id, queue, body, headers
"""
_MARK = "UPDATE postroom_outbox SET status = 'sent', sent_at = extract(epoch FROM now()) WHERE seq = ANY(%s) AND status = 'claimed'"


class NoBroker:
    """Confirms at once."""

    capabilities = Capabilities(
        name="none", durable=False, shared=False, native_delay=False, atomic_publish=True, clock_leases=False, counts_attempts=False
    )

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return [Outcome(Verdict.CONFIRMED)] * len(messages)


def fill(engine: Engine, rows: int) -> None:
    envelope = Envelope(id="0" * 32, type="send-receipt", key="order-4711", ordering_key="order-4711", queue="emails")
    headers = build_row(envelope, b"", ordered=False)["headers"]
    with engine.begin() as connection:
        connection.execute(text(_FILL), {"rows": rows, "at": time.time() - 10**6, "stamp": f"{time.time_ns():016x}", "headers": headers})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE postroom_outbox"))
        connection.execute(text("CHECKPOINT"))


def empty(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE postroom_outbox"))


def relay_rate(engine: Engine, rows: int, *, keep: bool = False) -> float:
    if not keep:
        empty(engine)
    fill(engine, rows)
    relay = Relay(engine, NoBroker())
    began = time.perf_counter()
    sent = relay.drain().sent
    return sent / (time.perf_counter() - began)


def plain_rate(engine: Engine, url: str, rows: int) -> float:
    empty(engine)
    fill(engine, rows)
    with psycopg.connect(url) as connection:
        began = time.perf_counter()
        while claimed := connection.execute(_CLAIM, ("relay-1", BATCH)).fetchall():
            connection.commit()
            for _seq, _id, _queue, _body, _headers in claimed:
                pass  # a broker's client would send it here
            connection.execute(_MARK, ([row[0] for row in claimed],))
            connection.commit()
        return rows / (time.perf_counter() - began)


def show_waiting(engine: Engine, waiting: int) -> None:
    """The rate and the memory with so many rows waiting, from the first to the last."""
    empty(engine)
    fill(engine, waiting)
    began, total = time.perf_counter(), 0

    def progress(result: object) -> None:
        nonlocal began, total
        total += result.sent
        if total % 100_000 < result.sent:
            now = time.perf_counter()
            megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"{total:>10} sent, {100_000 / (now - began):>8,.0f} rows/s, {megabytes:.0f} MB", flush=True)
            began = now

    Relay(engine, NoBroker()).drain(progress=progress)


def pair(url: str, rows: int = 20_000) -> Pair:
    engine = open_engine(url)
    create(engine)
    return Pair(
        name="relay to no broker, postgresql",
        unit="rows/s",
        goal=">= 0.8",
        ours=lambda: relay_rate(engine, rows),
        plain=lambda: plain_rate(engine, url, rows),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--waiting", type=int, default=0)
    options = parser.parse_args()
    print(measure(pair(options.url, options.rows), options.rounds).line)
    if options.waiting:
        show_waiting(open_engine(options.url), options.waiting)


if __name__ == "__main__":
    main()
