"""What may be a key, a type, a header, a delay: what every broker and every database carries as it is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from postroom.adapters.errors import InvalidMessage

from .envelope import RESERVED
from .faults import INT64, bad_text
from .tables import MAX_KEY, MAX_TYPE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroom.adapters.seam import Header

__all__ = ["MAX_DELAY", "MAX_HEADERS", "check_delay", "check_headers", "check_key", "check_type"]

MAX_DELAY = 10 * 366 * 86400
"""Seconds: ten years. A longer one is a mistake of units."""
MAX_HEADERS = 8192
"""Bytes of all names and values together: RabbitMQ can't split headers over frames, and Kafka counts them to the message."""

_TYPE = re.compile(rf"[!-~]{{1,{MAX_TYPE}}}")
_NAME = re.compile(r"[!-~]{1,100}")
_TAKEN = {"CC", "BCC"}  # RabbitMQ routes by them
_SHOWN = 40
_INTEGER_SIZE = 8


def check_key(key: object, path: str = "key") -> None:
    """Raise InvalidMessage unless `key` is text of 1 to 400 bytes of UTF-8 without NUL: a domain key, or an ordering key."""
    if type(key) is not str:
        raise InvalidMessage(f"{path}: {_shown(key)} is {type(key).__name__}, and a key is text; pass str() of it")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidMessage(f"{path}: {_shown(key)}: {bad_text(key)}") from None
    if not 0 < size <= MAX_KEY:
        raise InvalidMessage(f"{path}: {_shown(key)} has {size} bytes, and a key has 1 to {MAX_KEY}")
    if "\0" in key:
        raise InvalidMessage(f"{path}: {_shown(key)}: {bad_text(key)}")


def check_type(type_: object, path: str = "type") -> None:
    """Raise InvalidMessage unless `type_` is 1 to 200 printable ASCII characters without blanks."""
    if type(type_) is not str or not _TYPE.fullmatch(type_):
        raise InvalidMessage(f"{path}: {_shown(type_)} is no job type; use 1 to {MAX_TYPE} printable ASCII characters without blanks")


def check_delay(delay: Any, path: str = "delay") -> None:  # noqa: ANN401 - whatever the caller passed
    """Raise InvalidMessage unless `delay` is a number of seconds from 0 to ten years."""
    if type(delay) not in {int, float} or not 0 <= delay <= MAX_DELAY:
        raise InvalidMessage(f"{path}: {_shown(delay)} is not a number of seconds from 0 to {MAX_DELAY:,}")


def check_headers(headers: Mapping[str, Header], path: str = "headers") -> None:
    """Raise InvalidMessage unless every broker carries these headers: ASCII names; text, 64-bit integers, booleans, bytes, None; 8 KiB in all."""
    size = sum(_size_of_name(name, path) + _size_of_value(value, f"{path}.{name}") for name, value in headers.items())
    if size > MAX_HEADERS:
        raise InvalidMessage(f"{path}: {size:,} bytes, and all headers together may have {MAX_HEADERS:,}; put it into the payload")


def _size_of_name(name: object, path: str) -> int:
    if type(name) is not str or not _NAME.fullmatch(name):
        raise InvalidMessage(f"{path}: the name {_shown(name)} is not 1 to 100 printable ASCII characters without blanks")
    if name.lower().startswith(RESERVED) or name in _TAKEN:
        raise InvalidMessage(f"{path}: the name {name!r} is taken; {RESERVED}* is Postroom's, and RabbitMQ routes by CC and BCC")
    return len(name)


def _size_of_value(value: object, path: str) -> int:
    kind = type(value)
    if isinstance(value, str) and kind is str:
        return _size_of_text(value, path)
    if isinstance(value, bytes) and kind is bytes:
        return len(value)
    if kind is int and value not in INT64:
        raise InvalidMessage(f"{path}: {_shown(value)} has more than 64 bits; pass it as text")
    if kind is int or kind is bool or value is None:
        return _INTEGER_SIZE
    raise InvalidMessage(f"{path}: {_shown(value)} is {kind.__name__}, and a header is str, int, bool, bytes or None")


def _size_of_text(text: str, path: str) -> int:
    why = bad_text(text)
    if why:
        raise InvalidMessage(f"{path}: {why}")
    return len(text.encode())


def _shown(value: object) -> str:
    try:
        return repr(value)[:_SHOWN]
    except ValueError:  # an integer of more digits than Python prints
        return f"a {type(value).__name__}"
