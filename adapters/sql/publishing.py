"""From messages to rows: one transaction for a batch, one outcome for each message."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError

from postroom.adapters.errors import InvalidMessage, Unavailable
from postroom.adapters.machine import UNLIMITED
from postroom.adapters.seam import Outcome, Verdict

from .content import pack
from .dialects import SMALL_BODY
from .inserting import NewJob
from .tables import MAX_ID, MAX_KEY
from .topology import Routes, routes
from .transaction import transact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection, Engine

    from postroom.adapters.seam import Message

    from .dialects import Dialect

__all__ = ["publish"]

_CONFIRMED = Outcome(Verdict.CONFIRMED)
_LONGEST_DELAY = 1e10  # seconds, which leaves room for the clock beside it


def publish(engine: Engine, dialect: Dialect, messages: Sequence[Message]) -> list[Outcome]:
    """Insert a batch whole. A message that only the database knows to refuse is found by halving the batch.

    Raises AccessDenied or SchemaDrift. A database that can't be reached is an outcome.
    """
    try:
        return transact(engine, partial(_publish, dialect=dialect, messages=messages))
    except Unavailable as error:
        if not error.retryable:
            raise
        return [Outcome(Verdict.UNKNOWN, str(error))] * len(messages)
    except DBAPIError as error:
        if len(messages) == 1:
            return [Outcome(Verdict.REFUSED, f"the database refuses it: {error.orig}")]
    half = len(messages) // 2
    return publish(engine, dialect, messages[:half]) + publish(engine, dialect, messages[half:])


def _publish(connection: Connection, *, dialect: Dialect, messages: Sequence[Message]) -> list[Outcome]:
    known = routes(connection, {message.queue for message in messages})
    largest = max(len(message.body) for message in messages)
    limit = largest if largest <= SMALL_BODY else dialect.largest_body(connection)
    rows: list[NewJob] = []
    outcomes = []
    for message in messages:
        new, outcome = _admit(message, known, limit)
        rows += new
        outcomes.append(outcome)
    if rows:
        dialect.insert(connection, rows)
    return outcomes


def _admit(message: Message, known: Routes, largest_body: int) -> tuple[Sequence[NewJob], Outcome]:
    """The rows of one message, or why it has none."""
    if message.queue not in known.carriers:
        return (), Outcome(Verdict.BUSY, f"queue {message.queue!r} is not declared; run `postroom declare ...` or start its worker")
    try:
        _require_storable(message, largest_body)
        return _rows(message, known, _packed(message)), _CONFIRMED
    except InvalidMessage as refusal:
        return (), Outcome(Verdict.REFUSED, str(refusal))


def _rows(message: Message, known: Routes, headers: bytes) -> list[NewJob]:
    key, now = message.ordering_key, known.clock
    limit = UNLIMITED if message.max_attempts is None else message.max_attempts
    return [
        NewJob(carrier, message.id, message.body, headers, key, key if ordered else None, limit, now, now + message.delay)
        for carrier, ordered in known.carriers[message.queue]
    ]


def _packed(message: Message) -> bytes:
    try:
        return pack({**message.headers})
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidMessage(f"headers: {error}") from None


def _require_storable(message: Message, largest_body: int) -> None:
    if len(message.body) > largest_body:
        raise InvalidMessage(f"body: {len(message.body)} bytes, and this server takes {largest_body} at most")
    if not 0 <= message.delay <= _LONGEST_DELAY:
        raise InvalidMessage(f"delay: {message.delay!r} is not between 0 and {_LONGEST_DELAY:.0e} seconds")
    if message.max_attempts is not None and not 1 <= message.max_attempts <= UNLIMITED:
        raise InvalidMessage(f"max_attempts: {message.max_attempts} is not between 1 and {UNLIMITED}")
    _require_text("id", message.id, MAX_ID)
    _require_text("ordering_key", message.ordering_key or "", MAX_KEY)


def _require_text(name: str, value: str, limit: int) -> None:
    if "\0" in value:
        raise InvalidMessage(f"{name}: it has a NUL character")
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        raise InvalidMessage(f"{name}: {value!r} is not valid Unicode") from None
    if size > limit:
        raise InvalidMessage(f"{name}: {size} bytes, and it may have {limit} at most")
