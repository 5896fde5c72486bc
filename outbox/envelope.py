"""The envelope: what travels beside the payload, as headers that every broker carries."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from postroom.adapters.errors import Undecodable

from .tables import MAX_KEY, MAX_TYPE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroom.adapters.seam import Header, Message

__all__ = [
    "COPY",
    "ENQUEUED_AT",
    "ID",
    "KEY",
    "MAPPED",
    "ORIGIN",
    "REPLAYS",
    "RESERVED",
    "TYPE",
    "VERSION",
    "Envelope",
    "digest",
    "fingerprint",
    "is_foreign",
    "read_envelope",
]

RESERVED = "postroom-"
"""Header names that start so are Postroom's own."""

VERSION = "postroom-version"
ID = "postroom-id"
TYPE = "postroom-type"
KEY = "postroom-key"
ENQUEUED_AT = "postroom-enqueued-at"
COPY = "postroom-copy"
REPLAYS = "postroom-replays"
MAPPED = "postroom-mapped"
ORIGIN = "postroom-origin"

_FORMAT = 1
_MAX_ID = 36
_MAX_NUMBER = 2**31 - 1
_SHOWN = 40
_DIGEST = re.compile(r"([0-9a-f]{32})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Who a job is, apart from its payload.

    `queue` is the carrier (or the topic) it goes to or came from. `enqueued_at` is seconds by the database's clock, 0 before a row has it.
    `copy` counts the messages made for one job: 0 for the first, one more at each re-arm; an older copy than the ledger's is stale.
    `replays` counts the operator's replays. `headers` are the user's own.
    `mapped` is set where a mapper has made the job of another program's message, whose body and headers still travel with it: the fingerprint of
    the payload that was made (empty: not known any more), by which the ledger knows the job. `origin` is what else belongs to that message, as JSON.
    """

    id: str
    type: str
    key: str
    ordering_key: str
    queue: str
    enqueued_at: float = 0.0
    copy: int = 0
    replays: int = 0
    headers: Mapping[str, Header] = field(default_factory=dict)
    mapped: str | None = None
    origin: str = ""

    def to_headers(self) -> dict[str, Header]:
        """Return all headers of the message: the user's own and Postroom's."""
        headers = {
            **self.headers,
            VERSION: _FORMAT,
            ID: self.id,
            TYPE: self.type,
            KEY: self.key,
            ENQUEUED_AT: repr(self.enqueued_at),
            COPY: self.copy,
            REPLAYS: self.replays,
        }
        return headers if self.mapped is None else {**headers, MAPPED: self.mapped, ORIGIN: self.origin}


def read_envelope(message: Message) -> Envelope:
    """Read the envelope of a message that a consumer received. Raises Undecodable when it is not one of Postroom's, and says what is amiss."""
    headers = message.headers
    if VERSION not in headers:
        raise Undecodable(f"no {VERSION} header: the message was not published by Postroom")
    if _number(headers, VERSION) != _FORMAT:
        raise Undecodable(f"{VERSION} is {headers[VERSION]!r}; this Postroom reads version {_FORMAT}")
    key = _text(headers, KEY, MAX_KEY)
    return Envelope(
        id=_text(headers, ID, _MAX_ID),
        type=_text(headers, TYPE, MAX_TYPE),
        key=key,
        ordering_key=_ordering_key(message) or key,
        queue=message.queue,
        enqueued_at=_instant(headers),
        copy=_number(headers, COPY),
        replays=_number(headers, REPLAYS),
        headers={name: value for name, value in headers.items() if not name.startswith(RESERVED)},
        mapped=_fingerprint(headers) if MAPPED in headers else None,
        origin=_said(headers, ORIGIN),
    )


def is_foreign(message: Message) -> bool:
    """Whether it has no envelope at all: another program has sent it."""
    return VERSION not in message.headers


def fingerprint(body: bytes, headers: Mapping[str, Header]) -> str:
    """Return the fingerprint by which the ledger knows the payload of a message: that of what a mapper made of it, or else of its body."""
    return _said(headers, MAPPED) or digest(body)


def digest(body: bytes) -> str:
    """Return the fingerprint of a payload, 32 hex characters: the same bytes, the same payload."""
    return hashlib.blake2b(body, digest_size=16).hexdigest()


def _text(headers: Mapping[str, Header], name: str, limit: int) -> str:
    value = headers.get(name)
    if isinstance(value, str) and _fits(value, limit):
        return value
    raise Undecodable(f"{name} is {_shown(value)}, not text of 1 to {limit} bytes")


def _ordering_key(message: Message) -> str | None:
    key = message.ordering_key
    if not key or _fits(key, MAX_KEY):
        return key
    raise Undecodable(f"its ordering key is {_shown(key)}, not text of 1 to {MAX_KEY} bytes")


def _fits(text: str, limit: int) -> bool:
    return 0 < _size(text) <= limit and "\0" not in text


def _fingerprint(headers: Mapping[str, Header]) -> str:
    value = headers.get(MAPPED)
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        return value
    raise Undecodable(f"{MAPPED} is {_shown(value)}, not the fingerprint of a payload")


def _said(headers: Mapping[str, Header], name: str) -> str:
    value = headers.get(name)
    return value if isinstance(value, str) else ""


def _size(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:  # a lone surrogate: no text at all
        return 0


def _number(headers: Mapping[str, Header], name: str) -> int:
    value = headers.get(name)
    if type(value) is int and 0 <= value <= _MAX_NUMBER:
        return value
    raise Undecodable(f"{name} is {_shown(value)}, not a number from 0")


def _instant(headers: Mapping[str, Header]) -> float:
    value = headers.get(ENQUEUED_AT)
    try:
        seconds = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        seconds = math.nan
    if math.isfinite(seconds):
        return seconds
    raise Undecodable(f"{ENQUEUED_AT} is {_shown(value)}, not seconds since the epoch as text")


def _shown(value: Header) -> str:
    return "missing" if value is None else repr(value)[:_SHOWN]
