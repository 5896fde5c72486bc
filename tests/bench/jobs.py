"""No-op jobs through an SQL queue on PostgreSQL, with ledger and fsync, beside a loop of grouped begin and finish statements around nothing."""

from __future__ import annotations

import logging
import time
from uuid import uuid4

import plain
from pairs import Pair
from sqlalchemy import Engine, text

from postroom.adapters.seam import Message, Queue
from postroom.adapters.sql.adapter import SqlAdapter
from postroom.adapters.sql.schema import create
from postroom.consumers import Jobs, Worker, WorkerSettings
from postroom.consumers.worker.stop import Stop
from postroom.outbox.envelope import Envelope, digest

JOBS = 20_000
GROUP = 128
PUBLISHED_AT_ONCE = 1_000

jobs = Jobs()


@jobs.handler("no-op", queue="bench")
def no_op(_payload: dict[str, int]) -> None:
    pass


def ours(engine: Engine) -> float:
    """Publish is not counted: taking, beginning, running, finishing and acking is."""
    _empty(engine)
    adapter = SqlAdapter(engine)
    adapter.ensure([Queue(name="bench")])
    for start in range(0, JOBS, PUBLISHED_AT_ONCE):
        adapter.publish([_message(number) for number in range(start, start + PUBLISHED_AT_ONCE)])
    worker = Worker(jobs, engine, adapter, WorkerSettings(drain=True, relay=None, concurrency=2))
    began = time.perf_counter()
    report = worker.run(Stop())
    seconds = time.perf_counter() - began
    assert report.counts["done"] == JOBS, report
    return JOBS / seconds


def theirs(engine: Engine) -> float:
    _empty(engine)
    rows = [_ledger_row(number) for number in range(JOBS)]
    began = time.perf_counter()
    plain.begin_and_finish(engine, rows, GROUP)
    return JOBS / (time.perf_counter() - began)


def _empty(engine: Engine) -> None:
    create(engine)
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE postroom_outbox, postroom_ledger, postroom_jobs"))


def _message(number: int) -> Message:
    envelope = Envelope(id=uuid4().hex, type="no-op", key=f"order-{number}", ordering_key=f"order-{number}", queue="bench", enqueued_at=time.time())
    return Message(id=envelope.id, queue="bench", body=b'{"n":%d}' % number, headers=envelope.to_headers(), ordering_key=envelope.ordering_key)


def _ledger_row(number: int) -> dict[str, object]:
    fixed = {"group_name": "default", "type": "no-op", "queue": "bench", "status": "running", "attempts": 0, "max_attempts": 5, "suspicions": 0}
    varying = {"key": f"order-{number}", "job_id": uuid4().hex, "digest": digest(b'{"n":%d}' % number), "enqueued_at": time.time()}
    return {**fixed, **varying, "fence": 1, "copy": 0, "replays": 0, "worker": "plain", "taken_at": time.time(), "lease_until": time.time() + 30}


def pair(engine: Engine) -> Pair:
    logging.getLogger("postroom").setLevel(logging.ERROR)
    name = "no-op jobs with ledger, SQL queue, postgresql"
    return Pair(name=name, unit="jobs/s", goal=">= 0.5", ours=lambda: ours(engine), plain=lambda: theirs(engine))
