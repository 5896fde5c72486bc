"""A message as a record, and back. A header of Kafka is bytes: text goes as it is, and one header more names the types of the others."""

from __future__ import annotations

import json
import logging
from functools import lru_cache
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from postroom.adapters.seam import Message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import confluent_kafka

    from postroom.adapters.seam import Header

__all__ = ["ENVELOPE_ID", "GROUP", "ID", "RESERVED", "Arrived", "Pair", "Record", "arrived", "as_text", "headers_of", "place_of", "record_of"]

_log = logging.getLogger("postroom.kafka")

ENVELOPE_ID = "postroom-id"
ID = "postroom-message-id"
TYPES = "postroom-header-types"
GROUP = "postroom-only-group"
RESERVED = frozenset({ID, TYPES, GROUP})
"""Headers of the adapter's own: no message that is delivered shows them."""

Written = str | bytes | None
Pair = tuple[str, Written]

_look_at_headers = methodcaller("headers")
"""Called from C its result is always checked. From warm code the error that the library leaves set would come up anywhere later."""

_CODES = {int: "int", bool: "bool", bytes: "bytes"}


class Record(NamedTuple):
    """What is produced: a tuple, because there are so many of them. `queue` is the name that the caller knows it by.

    Our own headers are a dict, which costs the garbage collector nothing; those of another program's record may repeat a name.
    """

    topic: str
    queue: str
    key: bytes | None
    value: bytes | None
    headers: dict[str, Written] | list[Pair]


class Arrived(NamedTuple):
    """What a record says. `group` names the only group of its topic that it is for; None: it is for all."""

    message: Message
    group: str | None


def record_of(message: Message, topic: str, group: str | None) -> Record:
    """A message as a record of `topic`, for one group of it or for all. Raises KeyError, TypeError or ValueError for headers that can't travel."""
    headers = _written(message.headers)
    if headers.get(ENVELOPE_ID) != message.id:
        headers[ID] = message.id
    if group is not None:
        headers[GROUP] = group
    key = message.ordering_key
    return Record(topic, message.queue, None if key is None else key.encode(), message.body, headers)


def arrived(record: confluent_kafka.Message[Any, Any], queue: str) -> Arrived:
    """Read a record, of anyone's: one without our headers gets an id made of its place, and tells what that is."""
    raw = dict(headers_of(record))
    types = _types(as_bytes(raw.get(TYPES)) or b"{}")
    headers = {name: _value(value, types.get(name)) for name, value in raw.items() if name not in RESERVED}
    message = Message(
        id=_id(raw, record),
        queue=queue,
        body=record.value() or b"",
        headers=headers,
        ordering_key=_key(record.key()),
        properties={} if ENVELOPE_ID in raw else place_of(record),
    )
    return Arrived(message, as_text(raw.get(GROUP)))


def headers_of(record: confluent_kafka.Message[Any, Any]) -> list[Pair]:
    """The headers of a record, in order, as they travelled; none of one that has a name which is no UTF-8: the client library can't show those."""
    try:
        return cast("list[Pair]", _look_at_headers(record) or [])
    except (UnicodeDecodeError, SystemError) as error:  # it sets the one, and raises the other for having set it
        record.set_headers([])  # or the next look would find what it has left half made
        _log.warning("%s[%s] at %s: its headers can't be read: %s", record.topic(), record.partition(), record.offset(), error.__cause__ or error)
        return []


def place_of(record: confluent_kafka.Message[Any, Any]) -> dict[str, Any]:
    """Where a record lies, and since when (seconds)."""
    kind, milliseconds = record.timestamp()
    since = {"timestamp": milliseconds / 1000} if kind != TIMESTAMP_NOT_AVAILABLE else {}
    return {"topic": record.topic(), "partition": record.partition(), "offset": record.offset(), **since}


def as_text(value: str | bytes | None) -> str | None:
    """A header that is text. What is no UTF-8 shows its bytes."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def as_bytes(value: str | bytes | None) -> bytes | None:
    """A header as it travelled."""
    return value.encode() if isinstance(value, str) else value


def _written(headers: Mapping[str, Header]) -> dict[str, Written]:
    written = dict(headers)
    numbers, types = _shape(tuple(headers), tuple(map(type, headers.values())))
    for name in numbers:
        written[name] = str(headers[name])
    if types:
        written[TYPES] = types
    return cast("dict[str, Written]", written)


@lru_cache(maxsize=1024)
def _shape(names: tuple[str, ...], kinds: tuple[type, ...]) -> tuple[Sequence[str], bytes]:
    """Which headers of this shape are written out as text, and the header that names their types. Most messages have one of a few shapes."""
    "".join(names).encode()  # the client dies of a name that is no text
    typed = {name: _CODES[kind] for name, kind in zip(names, kinds, strict=True) if kind not in (str, type(None))}
    numbers = [name for name, code in typed.items() if code != "bytes"]
    return numbers, json.dumps(typed, separators=(",", ":")).encode() if typed else b""


@lru_cache(maxsize=256)
def _types(header: bytes) -> Mapping[str, str]:
    try:
        found = json.loads(header)
    except (ValueError, RecursionError):  # somebody else's header of that name
        return {}
    return found if isinstance(found, dict) else {}


def _value(value: str | bytes | None, code: str | None) -> Header:
    if value is None or code == "bytes":
        return value
    try:
        text = value.decode() if isinstance(value, bytes) else value
        return int(text) if code == "int" else text == "True" if code == "bool" else text
    except ValueError:
        return value


def _id(raw: Mapping[str, str | bytes | None], record: confluent_kafka.Message[Any, Any]) -> str:
    return as_text(raw.get(ID)) or as_text(raw.get(ENVELOPE_ID)) or f"{record.topic()}-{record.partition()}-{record.offset()}"


def _key(key: bytes | None) -> str | None:
    return None if key is None else key.decode(errors="backslashreplace")
