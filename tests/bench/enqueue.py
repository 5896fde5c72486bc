"""`Outbox.enqueue` in the caller's transaction beside a plain Core INSERT of the same row."""

from __future__ import annotations

import time
from dataclasses import dataclass

import plain
from pairs import Pair
from sqlalchemy import Engine

from postroom.adapters.sql.schema import create
from postroom.outbox import Outbox

ROWS = 2_000
IN_A_TRANSACTION = 20


@dataclass(frozen=True, slots=True)
class Receipt:
    order_id: int


def ours(engine: Engine) -> float:
    outbox = Outbox(queue="emails")
    began = time.perf_counter()
    for start in range(0, ROWS, IN_A_TRANSACTION):
        with engine.begin() as connection:
            for number in range(start, start + IN_A_TRANSACTION):
                outbox.enqueue(connection, "send-receipt", Receipt(number), key=f"order-{number}")
    return ROWS / (time.perf_counter() - began)


def theirs(engine: Engine) -> float:
    outbox = Outbox(queue="emails")
    fixed = {"status": "pending", "attempts": 0, "enqueued_at": time.time(), "available_at": time.time()}
    rows = [outbox.row("send-receipt", Receipt(number), key=f"order-{number}") | fixed for number in range(ROWS)]
    began = time.perf_counter()
    for start in range(0, ROWS, IN_A_TRANSACTION):
        with engine.begin() as connection:
            plain.insert_rows(connection, rows[start : start + IN_A_TRANSACTION])
    return ROWS / (time.perf_counter() - began)


def pair(engine: Engine) -> Pair:
    create(engine)
    name = f"enqueue, {engine.dialect.name}"
    return Pair(name=name, unit="rows/s", goal=">= 0.77 (1.3 x the time)", ours=lambda: ours(engine), plain=lambda: theirs(engine))
