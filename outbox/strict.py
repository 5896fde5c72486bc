"""Strict JSON: the part of JSON that means the same in every language, on every database, and at both ends.

Text without NUL and without lone surrogates, finite floats, integers of 64 bits with a sign, keys that are text and appear once, at most
64 containers inside each other. What enqueue refuses, a worker refuses too: the same functions judge both.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import TYPE_CHECKING

import msgspec

from postroom.adapters.errors import InvalidMessage, Undecodable

from .faults import INT64, MAX_DEPTH, first_fault

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["decode_json", "encode_json", "is_strict"]

_NUL = b"\\u0000"
_SHOWN = 40

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def encode_json(value: object, path: str = "payload") -> bytes:
    """Return `value` as JSON. Raises InvalidMessage, beginning with the path of the value that can't travel or would arrive as another."""
    try:
        body = _encode(value) if is_strict(value) else b""
    except (UnicodeEncodeError, RecursionError):  # lone surrogates; a caller that is itself at the end of its stack
        body = b""
    if not body or _NUL in body:
        _examine(value, path, InvalidMessage)
    if not body:
        raise InvalidMessage(f"{path}: it can't be written as JSON")
    return body


def decode_json(body: bytes) -> object:
    """Return what the JSON in `body` says. Raises Undecodable, and nothing else, for all that is not strict JSON."""
    try:
        value = _decode(body)
    except RecursionError:
        raise Undecodable(f"payload: nested deeper than {MAX_DEPTH}") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise Undecodable(f"payload: {error}; it begins {body[:_SHOWN]!r}") from None
    if not is_strict(value) or _NUL in body:
        _examine(value, "payload", Undecodable)
    if _encode(value) != body:  # written by another hand: perhaps only spaces, perhaps a key that appears twice
        json.loads(body.decode(), object_pairs_hook=_require_unique)
    return value


def is_strict(value: object, depth: int = MAX_DEPTH) -> bool:  # noqa: C901, PLR0911 - one call per value: the hot loop of each enqueue
    """Tell quickly whether `value` is strict JSON, but for the characters of its text: one pass, about 60 ns for each value."""
    kind = type(value)
    if kind is dict:
        if depth <= 0:
            return False
        for key, item in value.items():  # type: ignore[attr-defined]  # noqa: SIM110 - all() would double the time
            if type(key) is not str or not (type(item) is str or is_strict(item, depth - 1)):
                return False
        return True
    if kind is list:
        if depth <= 0:
            return False
        for item in value:  # type: ignore[attr-defined]  # noqa: SIM110 - the same
            if not (type(item) is str or is_strict(item, depth - 1)):
                return False
        return True
    if kind is int:
        return value in INT64
    if kind is float:
        return isfinite(value)  # type: ignore[arg-type]
    return kind is str or kind is bool or value is None


def _examine(value: object, path: str, error: type[InvalidMessage]) -> None:
    fault = first_fault(value, path)
    if fault:
        raise error(fault)


def _require_unique(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    names = [name for name, _ in pairs]
    twice = next(name for name in names if names.count(name) > 1)
    raise Undecodable(f"payload: the key {twice[:_SHOWN]!r} appears twice in one object")
