"""Messages from other producers: a function of the service's own turns each into a job, or says that it is none."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import msgspec

from postroom.adapters.errors import InvalidMessage, Undecodable
from postroom.outbox.envelope import RESERVED, Envelope, digest
from postroom.outbox.payload import encode_payload
from postroom.outbox.rules import check_key, check_type

from .policy import readable

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.adapters.seam import Header, Message

__all__ = ["Function", "Mapped", "MappedJob", "Mapper", "job_id", "ordering_key_of", "origin_of", "unmappable"]

_log = logging.getLogger("postroom.worker")

SLOW = 1.0
"""A mapper that took so long (seconds) is told of: nothing is received meanwhile."""

_MAX_ID = 36
_YEAR_2100 = 4_102_444_800


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedJob:
    """What a mapper makes of a message.

    `key` is the domain key, by which a job is done once: never made of broker coordinates, nor of a time or a number that differs when the producer
    sends the same thing again. `payload` is anything that `Outbox.enqueue` takes; it does not travel, so its size is not limited.
    `headers` are those that the handler finds in `context.job`, by default the message's own. `ordering_key` is by default the message's, else `key`.
    """

    type: str
    key: str
    payload: Any
    headers: Mapping[str, Header] | None = None
    ordering_key: str | None = None


Function: TypeAlias = "Callable[[Message], MappedJob | None]"


class _Origin(TypedDict, total=False):
    """What `origin_of` wrote."""

    id: str
    ordering_key: str | None
    properties: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """A message and the job that was made of it: its envelope, payload (JSON) and headers. `misfit` says why it has no payload, if it has none."""

    envelope: Envelope
    payload: bytes
    headers: Mapping[str, Header]
    misfit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mapper:
    """The function for the messages in one queue that other programs have sent. `where` is its file and line."""

    queue: str
    function: Function
    where: str

    def map(self, message: Message, now: float) -> Mapped | None:
        """Make a job of a message without an envelope; None when it is none, on purpose. Raises Undecodable, which names the mapper."""
        own = {name: value for name, value in message.headers.items() if not name.startswith(RESERVED)}
        return self._guarded(replace(message, headers=own), lambda made, original: _first(made, original, now))

    def map_again(self, message: Message, envelope: Envelope) -> Mapped:
        """Make the payload anew for a copy that Postroom sent of such a message: who the job is says its envelope.

        When that can't be done (any more) it is still a job, that the ledger knows: one that fails for good.
        """
        try:
            again = self._guarded(_original(message, envelope), lambda made, original: _again(made, original, envelope))
        except Undecodable as error:
            return unmappable(envelope, str(error))
        return again or unmappable(envelope, f"{self}: it is no job any more, says the mapper, and it was one")

    def __str__(self) -> str:
        return f"mapper {getattr(self.function, '__qualname__', None) or self.where} of queue {self.queue!r}"

    def _guarded(self, message: Message, finish: Callable[[MappedJob, Message], Mapped]) -> Mapped | None:
        """Call the function. Whatever comes out of it, its caller's thread goes on."""
        began = time.monotonic()
        try:
            made = self.function(message)
            return None if made is None else finish(_checked(made), message)
        except BaseException as error:  # also SystemExit: this is the thread that receives
            raise Undecodable(f"{self}: {error if isinstance(error, InvalidMessage) else readable(error)}") from error
        finally:
            if (took := time.monotonic() - began) > SLOW:
                _log.warning("%s took %.1f s, and nothing is received meanwhile: it is to convert a message, and to wait for nothing", self, took)


def unmappable(envelope: Envelope, why: str) -> Mapped:
    """A job that was made of a message, and can't be made of it again."""
    return Mapped(envelope=envelope, payload=b"", headers=envelope.headers, misfit=why)


def job_id(message_id: str) -> str:
    """The id of the job of a message with this id: the same, where it fits."""
    name = message_id.encode(errors="surrogatepass")
    return message_id if 0 < len(name) <= _MAX_ID and message_id.isprintable() else digest(name)


def origin_of(message: Message) -> str:
    """What must travel with a copy of a message, besides its body and headers, so that a mapper finds the same message in it."""
    origin = {"id": message.id, "ordering_key": message.ordering_key, "properties": message.properties}
    return msgspec.json.encode(origin).decode()


def ordering_key_of(message: Message) -> str | None:
    """That of the message, if it can be one of ours."""
    try:
        check_key(message.ordering_key)
    except InvalidMessage:
        return None
    return message.ordering_key


def _original(message: Message, envelope: Envelope) -> Message:
    try:
        origin = msgspec.json.decode(envelope.origin or "{}", type=_Origin)
    except msgspec.MsgspecError as error:
        raise Undecodable(f"postroom-origin: {error}") from None
    others = origin.get("properties", {}).get("headers", {})  # which the copy has as headers, too
    if not isinstance(others, dict):
        raise Undecodable(f"postroom-origin: its headers are {type(others).__name__}, not a mapping of names to values")
    headers = {name: value for name, value in envelope.headers.items() if name not in others}
    return replace(message, headers=headers, **origin)


def _checked(made: object) -> MappedJob:
    if not isinstance(made, MappedJob):
        raise InvalidMessage(f"it returned {type(made).__name__}: a mapper returns a MappedJob, or None for what is no job")
    check_type(made.type)
    check_key(made.key)
    if made.ordering_key is not None:
        check_key(made.ordering_key, "ordering_key")
    if not isinstance(made.headers, Mapping | None):
        raise InvalidMessage(f"headers: they are {type(made.headers).__name__}, not a mapping of names to values")
    return made


def _first(made: MappedJob, message: Message, now: float) -> Mapped:
    payload = _payload(made)
    envelope = Envelope(
        id=job_id(message.id),
        type=made.type,
        key=made.key,
        ordering_key=made.ordering_key or ordering_key_of(message) or made.key,
        queue=message.queue,
        enqueued_at=_instant(message.properties.get("timestamp"), now),
        headers=message.headers,
        mapped=digest(payload),
        origin=origin_of(message),
    )
    return _mapped(envelope, payload, made)


def _again(made: MappedJob, original: Message, envelope: Envelope) -> Mapped:
    """The ledger knows the job by the fingerprint of its first payload: when the mapper was mended since, it is the same job all the same.

    A copy from the outbox has the ordering key that the mapper chose at first; a dead letter that was put back has that of its message.
    """
    payload = _payload(made)
    is_its_own = envelope.ordering_key == (ordering_key_of(original) or envelope.key)
    chosen = (made.ordering_key if is_its_own else None) or envelope.ordering_key
    return _mapped(replace(envelope, mapped=envelope.mapped or digest(payload), ordering_key=chosen), payload, made)


def _mapped(envelope: Envelope, payload: bytes, made: MappedJob) -> Mapped:
    return Mapped(envelope=envelope, payload=payload, headers=envelope.headers if made.headers is None else dict(made.headers))


def _payload(made: MappedJob) -> bytes:
    return encode_payload(made.payload, limit=sys.maxsize)


def _instant(value: object, now: float) -> float:
    """When it was sent, if its producer or broker says so in seconds; else now."""
    plausible = isinstance(value, int | float) and math.isfinite(value) and 0 < value < _YEAR_2100
    return float(value) if plausible and isinstance(value, int | float) else now
