"""Claims, and hands on the clock of a ledger's rows: time passes for them when a test says so."""

from typing import Any

from sqlalchemy import Engine, Row, select, update

from postroom.adapters.seam import Message
from postroom.adapters.sql.engine import open_engine
from postroom.adapters.sql.metadata import metadata
from postroom.consumers.ledger import Answer, Claim, Ledger, Started
from postroom.consumers.ledger.tables import ledger
from postroom.outbox.envelope import Envelope, digest
from postroom.outbox.tables import outbox

LEASE = 1000.0
"""Seconds: no test lasts so long."""


def database(url: str, **options: Any) -> Engine:
    """An engine on an empty database that now has all tables."""
    engine = open_engine(url, **options)
    metadata.create_all(engine)
    return engine


def open_ledger(engine: Engine, worker: str = "worker-1", *, native_delay: bool = True, lease: float = LEASE) -> Ledger:
    return Ledger(engine, worker=worker, lease=lease, native_delay=native_delay)


def claim(
    key: str = "order-4711",
    job: str = "job-a",
    *,
    type_: str = "send-receipt",
    body: bytes = b'{"order":4711}',
    copy: int = 0,
    replays: int = 0,
    ordering_key: str = "",
    **rest: Any,
) -> Claim:
    """A claim on the message of a job, with max_attempts 3 in group "default" unless `rest` says otherwise."""
    envelope = Envelope(id=job, type=type_, key=key, ordering_key=ordering_key or key, queue="emails", enqueued_at=1.0, copy=copy, replays=replays)
    message = Message(id=job, queue="emails", body=body, headers=envelope.to_headers(), ordering_key=envelope.ordering_key)
    given = {"queue": "emails", "group": "default", "max_attempts": 3, **rest}
    return Claim(message=message, envelope=envelope, digest=digest(body), **given)


def begin(book: Ledger, *claims: Claim) -> list[Answer]:
    """The answers to claims, in a round of their own."""
    return book.round([], claims)[1]


def start(book: Ledger, a_claim: Claim | None = None) -> Started:
    """The attempt that this claim begins."""
    [answer] = begin(book, a_claim or claim())
    assert isinstance(answer, Started), answer
    return answer


def finish(book: Ledger, *finishes: Any) -> list[Any]:
    """The results of finishes, in a round of their own."""
    return book.round(finishes, [])[0]


def rows(engine: Engine) -> list[Row[Any]]:
    """All rows of the ledger."""
    with engine.connect() as connection:
        return list(connection.execute(select(ledger).order_by(ledger.c.id)))


def row(engine: Engine) -> Row[Any]:
    """The only row of the ledger."""
    [only] = rows(engine)
    return only


def waiting(engine: Engine) -> list[Row[Any]]:
    """The outbox rows, in order."""
    with engine.connect() as connection:
        return list(connection.execute(select(outbox).order_by(outbox.c.seq)))


def pass_time(engine: Engine, seconds: float) -> None:
    """Let so much time pass for every row of ledger and outbox."""
    ours = {name: ledger.c[name] - seconds for name in ("enqueued_at", "taken_at", "lease_until", "retry_at", "finished_at")}
    with engine.begin() as connection:
        connection.execute(update(ledger).values(ours))
        connection.execute(update(outbox).values(available_at=outbox.c.available_at - seconds))
