"""Why a value can't travel as JSON, in words, with its path and the remedy. Only looked for once something is known to be wrong."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import uuid
from dataclasses import fields, is_dataclass
from functools import lru_cache
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["INT64", "MAX_DEPTH", "bad_text", "first_fault", "first_flaw", "names_of", "step"]

MAX_DEPTH = 64
"""How many containers may be inside each other: the same limit on every version of Python, far from its stack's end."""
INT64 = range(-(2**63), 2**63)  # ask it only of exact ints: to find a subclass of int, range counts up to it

_PLAIN = (str, int, float, bool, type(None), dict, list)
_SHOWN = 40
_LONGEST_PATH = 80

_FIELD = ", or make it a field of that type in a dataclass"
_ABROAD: tuple[tuple[type, str, str], ...] = (
    (enum.Enum, "its value", f"pass its .value{_FIELD}"),
    (dt.datetime, "text", f"pass its .isoformat(){_FIELD}"),
    (dt.date, "text", f"pass its .isoformat(){_FIELD}"),
    (dt.time, "text", f"pass its .isoformat(){_FIELD}"),
    (dt.timedelta, "text", f"pass its .total_seconds(){_FIELD}"),
    (decimal.Decimal, "text", f"pass str() of it{_FIELD}"),
    (uuid.UUID, "text", f"pass str() of it{_FIELD}"),
    (bytes, "text", f"pass text, in base64 for instance{_FIELD}"),
    (bytearray, "text", f"pass text, in base64 for instance{_FIELD}"),
    (tuple, "a list", f"pass list() of it{_FIELD}"),
    (set, "a list", f"pass sorted() of it{_FIELD}"),
    (frozenset, "a list", f"pass sorted() of it{_FIELD}"),
    (str, "a plain str", "pass str() of it"),
    (int, "a plain int", "pass int() of it"),
    (float, "a plain float", "pass float() of it"),
    (dict, "a plain dict", "pass dict() of it"),
    (list, "a plain list", "pass list() of it"),
)
"""Types that change in transit: as what they would arrive, and the remedy. The first that fits is meant: an Enum may also be a str."""


def first_fault(value: object, path: str) -> str | None:
    """Return the first thing in `value` that is not strict JSON, as `path: why`; None when there is none."""
    return next((f"{_short(where)}: {why}" for where, node, depth in _walk(value, path) if (why := _flaw(node, depth) or _foreign(node))), None)


def first_flaw(value: object, path: str) -> str | None:
    """As `first_fault`, for a typed payload: types and keys are as the types say, only what no JSON can hold is a flaw."""
    return next((f"{_short(where)}: {why}" for where, node, depth in _walk(value, path) if (why := _flaw(node, depth))), None)


def bad_text(text: str) -> str | None:
    """Tell why `text` can't be stored by every database and read by every language, if so."""
    if "\0" in text:
        return "a NUL character can't be stored by every database"
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "a lone surrogate is no character"
    return None


def step(path: str, key: object) -> str:
    """Extend a path by one key or attribute."""
    return f"{path}.{key}" if isinstance(key, str) and key.isidentifier() else f"{path}[{repr(key)[:_SHOWN]}]"


def names_of(value: object) -> tuple[str, ...] | None:
    """Return the names of the fields of a dataclass, msgspec Struct, pydantic model or attrs object; None for other values."""
    kind: Any = type(value)
    return _names(kind)


@lru_cache(maxsize=1024)
def _names(kind: Any) -> tuple[str, ...] | None:  # noqa: ANN401 - any class
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    for where in ("__struct_fields__", "__pydantic_fields__"):
        if hasattr(kind, where):
            return tuple(getattr(kind, where))
    attributes = getattr(kind, "__attrs_attrs__", None)
    return None if attributes is None else tuple(attribute.name for attribute in attributes)


def _walk(value: object, path: str, depth: int = 0) -> Iterator[tuple[str, object, int]]:
    """Yield each value with its path and the number of containers around it, the outer before the inner."""
    yield path, value, depth
    for key, inner in _children(value):
        yield from _walk(inner, f"{path}[{key}]" if isinstance(value, (list, tuple)) else step(path, key), depth + 1)


def _children(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value)
    else:
        yield from ((name, getattr(value, name, None)) for name in names_of(value) or ())


def _flaw(value: object, depth: int) -> str | None:
    """Tell what no JSON can hold."""
    if isinstance(value, (dict, list, tuple)) or names_of(value) is not None:
        return _flaw_of_container(value, depth)
    if isinstance(value, str):
        return bad_text(value)
    if isinstance(value, float) and not isfinite(value):
        return f"{'NaN' if isnan(value) else 'Infinity'} is not JSON"
    if isinstance(value, int) and int(value) not in INT64:
        return f"an integer of {value.bit_length() + 1} bits; JSON's readers agree on 64; pass it as text"
    return None


def _flaw_of_container(value: object, depth: int) -> str | None:
    if depth >= MAX_DEPTH:
        return f"nested deeper than {MAX_DEPTH}"
    keys = [key for key in value if isinstance(key, str)] if isinstance(value, dict) else []
    return next((f"key {repr(key)[:_SHOWN]}: {why}" for key in keys if (why := bad_text(key))), None)


def _foreign(value: object) -> str | None:
    """Tell which type JSON does not have."""
    if type(value) not in _PLAIN:
        return _no_json_for(value)
    keys = value if isinstance(value, dict) else ()
    return next((f"key {repr(key)[:_SHOWN]} is {type(key).__name__}, and JSON's keys are text" for key in keys if type(key) is not str), None)


def _no_json_for(value: object) -> str:
    kind = type(value).__name__
    if names_of(value) is not None:
        return f"{kind} would arrive as a dict; make it the whole payload, or a field of that type in a dataclass, or pass a dict of it"
    for base, arrives_as, remedy in _ABROAD:
        if isinstance(value, base):
            return f"{kind} would arrive as {arrives_as}; {remedy}"
    return f"JSON has nothing like {kind}; pass dict, list, str, int, float, bool or None"


def _short(path: str) -> str:
    return path if len(path) <= _LONGEST_PATH else f"{path[: _LONGEST_PATH // 2]}...{path[-_LONGEST_PATH // 2 :]}"
