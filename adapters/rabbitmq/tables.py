"""Properties with any headers that may come, read and written: some of them pika can't read (and its connection ends), others it can't write."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from pika import BasicProperties
from pika.data import decode_short_string, decode_value, encode_short_string, encode_value
from pika.exceptions import AMQPError
from pika.frame import Header

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["UNENCODABLE", "encode", "read_header_frame"]

UNENCODABLE = (AMQPError, struct.error, AssertionError, ValueError, TypeError, AttributeError)
"""What pika raises for a value that it does not write."""

_FLAGS = struct.Struct(">H")
_BEFORE = ("content_type", "content_encoding")
_AFTER = (
    *("delivery_mode", "priority", "correlation_id", "reply_to", "expiration"),
    *("message_id", "timestamp", "type", "user_id", "app_id", "cluster_id"),
)


_FRAME = struct.Struct(">BHIHHQ")  # type, channel, size; class, weight, size of the body
_FRAME_START, _END = 7, 1
_HEADER = 2
_SIZE = struct.Struct(">I")
_FIXED = {"delivery_mode": struct.Struct(">B"), "priority": struct.Struct(">B"), "timestamp": struct.Struct(">Q")}
_NUMBERS = {b"T": struct.Struct(">Q"), b"d": struct.Struct(">d"), b"f": struct.Struct(">f")}
"""Kinds of values that pika can't read, or not right: dates far away, fractions."""


def read_header_frame(buffer: bytes) -> tuple[int, Header]:
    """Read the frame of properties that `buffer` begins with, and that pika could not read: what no date can be is a number.

    Headers behind a value of a kind that is unknown are left out. Raises ValueError for a frame of another type.
    """
    kind, channel, size, _, _, body_size = _FRAME.unpack_from(buffer)
    if kind != _HEADER:
        raise ValueError("no frame of properties")
    return _FRAME_START + size + _END, Header(channel, body_size, _properties(buffer, _FRAME.size))


def _properties(buffer: bytes, offset: int) -> BasicProperties:
    (flags,) = _FLAGS.unpack_from(buffer, offset)
    found: dict[str, Any] = {}
    offset += _FLAGS.size
    for name in (*_BEFORE, "headers", *_AFTER):
        if flags & getattr(BasicProperties, f"FLAG_{name.upper()}"):
            found[name], offset = _property(name, buffer, offset)
    return BasicProperties(**found)


def _property(name: str, buffer: bytes, offset: int) -> tuple[Any, int]:
    if name == "headers":
        return _read_table(buffer, offset)
    if name in _FIXED:
        return _FIXED[name].unpack_from(buffer, offset)[0], offset + _FIXED[name].size
    text: tuple[Any, int] = decode_short_string(buffer, offset)
    return text


def _read_table(buffer: bytes, offset: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    offset, end = _extent(buffer, offset)
    while offset < end:
        name, offset = decode_short_string(buffer, offset)
        found[str(name)], offset = _read_value(buffer, offset, end)
    return found, end


def _read_list(buffer: bytes, offset: int) -> tuple[list[Any], int]:
    found = []
    offset, end = _extent(buffer, offset)
    while offset < end:
        value, offset = _read_value(buffer, offset, end)
        found.append(value)
    return found, end


def _read_value(buffer: bytes, offset: int, end: int) -> tuple[Any, int]:
    kind = buffer[offset : offset + 1]
    if kind == b"F":
        return _read_table(buffer, offset + 1)
    if kind == b"A":
        return _read_list(buffer, offset + 1)
    if kind in _NUMBERS:
        return _NUMBERS[kind].unpack_from(buffer, offset + 1)[0], offset + 1 + _NUMBERS[kind].size
    try:
        value: tuple[Any, int] = decode_value(buffer, offset)
    except (AMQPError, ValueError, OverflowError, struct.error):
        return buffer[offset:end], end  # nobody knows where the next one begins
    return value


def _extent(buffer: bytes, offset: int) -> tuple[int, int]:
    (size,) = _SIZE.unpack_from(buffer, offset)
    return offset + _SIZE.size, offset + _SIZE.size + size


def encode(properties: BasicProperties) -> bytes:
    """Return properties as `BasicProperties.encode` would; a header that can't be written at all is written as text."""
    before, after = (b"".join(_part(properties, names).encode()) for names in (_BEFORE, _AFTER))
    flags = _FLAGS.unpack_from(before)[0] | _FLAGS.unpack_from(after)[0] | BasicProperties.FLAG_HEADERS
    return _FLAGS.pack(flags) + before[_FLAGS.size :] + _table(properties.headers or {}) + after[_FLAGS.size :]


def _part(properties: BasicProperties, names: tuple[str, ...]) -> BasicProperties:
    return BasicProperties(**{name: getattr(properties, name) for name in names})


def _table(table: Mapping[Any, Any]) -> bytes:
    return _sized(b"".join(_name(name) + _value(value) for name, value in table.items()))


def _name(name: Any) -> bytes:  # noqa: ANN401 - text, or bytes that are none
    pieces: list[bytes] = []
    encode_short_string(pieces, name)
    return b"".join(pieces)


def _value(value: Any) -> bytes:  # noqa: ANN401 - all that AMQP knows
    if isinstance(value, float):
        return b"d" + struct.pack(">d", value)
    if isinstance(value, dict):
        return b"F" + _table(value)
    if isinstance(value, list):
        return b"A" + _sized(b"".join(map(_value, value)))
    pieces: list[bytes] = []
    try:
        encode_value(pieces, value)
    except UNENCODABLE:  # a number of 64 bits without a sign, perhaps
        encode_value(pieces, repr(value))
    return b"".join(pieces)


def _sized(body: bytes) -> bytes:
    return _SIZE.pack(len(body)) + body
