"""Payloads with a type: a dataclass, msgspec Struct, pydantic model or attrs class. Their fields say what the consumer makes of the JSON.

So such a payload may hold dates, decimals, UUIDs, enums, bytes, sets: whatever its type brings back as it was. That is not assumed but tried, at
each enqueue: the JSON is read again with the payload's own type, as a consumer will do, and compared.
"""

from __future__ import annotations

import datetime as dt
import decimal
from dataclasses import dataclass
from functools import lru_cache
from math import isnan
from typing import TYPE_CHECKING, Any

import msgspec

from postroom.adapters.errors import InvalidMessage, Undecodable

from .faults import first_flaw, names_of, step
from .strict import decode_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["difference", "encode_typed", "is_typed"]

_SHOWN = 40
_SCALARS = frozenset({str, int, bool, float, type(None)})
_WRITTEN: dict[type, Callable[[Any], str]] = {
    dt.datetime: dt.datetime.isoformat,  # the offset travels, the zone's name does not
    dt.time: dt.time.isoformat,
    decimal.Decimal: str,  # 1.10 stays 1.10
}
"""Types whose == is blind to something that counts: these are compared as they are written."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class _Codec:
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def is_typed(payload: object) -> bool:
    """Whether the type of `payload` says what its fields are."""
    return names_of(payload) is not None


def encode_typed(payload: object, path: str = "payload") -> bytes:
    """Return `payload` as strict JSON from which its own type makes an equal payload; else raise InvalidMessage with the path of the culprit."""
    kind: Any = type(payload)
    codec = _codec(kind, path)
    try:
        body = codec.encode(payload)
        decode_json(body)
        wrong = difference(payload, codec.decode(body), path)
    except Exception as error:  # the payload's own code runs in there
        raise InvalidMessage(first_flaw(payload, path) or _told(error, path)) from error
    if wrong:
        raise InvalidMessage(first_flaw(payload, path) or wrong)
    return body


def difference(given: Any, back: Any, path: str) -> str | None:  # noqa: ANN401 - any value
    """Return where and how `back` is not what was `given`, type for type, as `path: why`; None when it is the same."""
    kind = type(given)
    if kind in _SCALARS:
        return None if given == back and _alike(kind, type(back)) else _lost(given, back, path)
    if kind is not type(back):
        return _lost(given, back, path)
    parts = _parts(given, back, path)
    if parts is None:
        written: Callable[[Any], object] = _WRITTEN.get(kind, _itself)
        return None if written(given) == written(back) else _lost(given, back, path)
    return next((wrong for inner, arrived, where in parts if (wrong := difference(inner, arrived, where))), None)


def _parts(given: Any, back: Any, path: str) -> Iterator[tuple[Any, Any, str]] | None:  # noqa: ANN401 - two values of one type
    """Pair what is inside two values of one type; None when they have no parts."""
    names = names_of(given)
    if names is not None:
        return ((getattr(given, name, None), getattr(back, name, None), f"{path}.{name}") for name in names)
    if isinstance(given, dict):
        keys = [(key, arrived, f"{path}: key {repr(key)[:_SHOWN]}") for key, arrived in zip(given, back, strict=False)]
        return iter(keys + [(given[key], back.get(key), step(path, key)) for key in given])
    if isinstance(given, (list, tuple)):
        lengths = [(len(given), len(back), path)]
        return iter(lengths + [(*pair, f"{path}[{index}]") for index, pair in enumerate(zip(given, back, strict=False))])
    return None


def _itself(value: Any) -> Any:  # noqa: ANN401 - any value
    return value


def _alike(given: type, back: type) -> bool:
    return given is back or (given is int and back is float)  # a whole number in a field of floats


def _lost(given: object, back: object, path: str) -> str:
    if isinstance(given, float) and isnan(given):
        return f"{path}: NaN is not JSON"
    kind, arrived = type(given).__name__, type(back).__name__
    if kind != arrived:
        return f"{path}: {kind} would arrive as {arrived}; give the field the type {kind}, or pass what JSON has"
    return f"{path}: {repr(given)[:_SHOWN]} would arrive as {repr(back)[:_SHOWN]}"


@lru_cache(maxsize=1024)
def _codec(kind: Any, path: str) -> _Codec:  # noqa: ANN401 - any class
    """How a type is written and read. Raises InvalidMessage for one that can't be read back."""
    if hasattr(kind, "model_validate_json"):
        model: Any = kind
        return _Codec(
            encode=lambda value: value.model_dump_json(by_alias=True, round_trip=True, warnings=False).encode(), decode=model.model_validate_json
        )
    try:
        return _Codec(encode=_encode, decode=msgspec.json.Decoder(kind).decode)
    except Exception as error:  # msgspec's TypeError, or NameError for an annotation that names nothing
        raise InvalidMessage(f"{path}: no {kind.__name__} can be made from JSON again: {error}; mend its annotations, or pass a dict") from error


def _told(error: Exception, path: str) -> str:
    """The reason as `path: why`, from what msgspec, pydantic or the payload's own class said."""
    if isinstance(error, Undecodable):
        return f"{path}: {str(error).removeprefix('payload: ')}"
    if isinstance(error, msgspec.ValidationError):
        why, _, where = str(error).partition(" - at `$")
        return f"{path}{where.removesuffix('`')}: {why}"
    listed: Callable[[], list[dict[str, Any]]] | None = getattr(error, "errors", None)
    first = listed()[0] if listed else {"loc": (), "msg": f"{type(error).__name__}: {error}"}
    for key in first["loc"]:
        path = step(path, key)
    return f"{path}: {first['msg']}"
