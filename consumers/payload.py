"""From the bytes of a message to the type that a handler's annotation asks for."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from postroom.outbox.strict import decode_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Convert", "Misfit", "converter"]

Convert: TypeAlias = "Callable[[bytes], Any]"


class Misfit(Exception):
    """The payload is not strict JSON, or does not fit the handler's type: no later attempt can mend that."""


def converter(annotation: Any) -> Convert:  # noqa: ANN401 - any type a handler may name
    """Return the function that turns a payload into `annotation`: a dataclass, msgspec Struct, pydantic model, TypedDict, plain type or Any.

    The function raises Misfit with a readable reason. Raises TypeError at once for a type that nothing can be converted to.
    """
    build = _pydantic(annotation) if hasattr(annotation, "model_validate_json") else _msgspec(annotation)

    def convert(body: bytes) -> Any:  # noqa: ANN401 - what the annotation says
        try:
            return build(body)
        except Exception as error:
            raise Misfit(f"the payload does not fit {_name(annotation)}: {_told(error)}") from error

    return convert


def _msgspec(annotation: Any) -> Convert:  # noqa: ANN401 - any type
    for part in _parts(msgspec.inspect.type_info(annotation), set()):
        if isinstance(part, msgspec.inspect.CustomType):
            raise TypeError(f"{_name(part.cls)} can't be made from JSON; use a dataclass, a msgspec Struct, a pydantic model or plain types")
    return lambda body: msgspec.convert(decode_json(body), annotation, str_keys=True)


def _pydantic(model: Any) -> Convert:  # noqa: ANN401 - pydantic is an extra, never imported here
    def build(body: bytes) -> Any:  # noqa: ANN401 - the model
        decode_json(body)  # pydantic's own parser is not strict: it takes NaN for a number
        return model.model_validate_json(body)

    return build


def _told(error: Exception) -> str:
    """The error in one line; pydantic's as msgspec would put it: what is wrong first, and where."""
    listed: Callable[[], list[dict[str, Any]]] | None = getattr(error, "errors", None)
    if not callable(listed) or not hasattr(error, "error_count"):
        return str(error)
    first, *others = listed()
    more = f" (and {len(others)} more)" if others else ""
    return f"{first['msg']} - at `{functools.reduce(_step, first['loc'], '$')}`{more}"


def _step(path: str, key: str | int) -> str:
    return f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}"


def _parts(info: Any, seen: set[int]) -> Iterator[Any]:  # noqa: ANN401 - msgspec's description of a type, or anything in it
    """A type and all the types inside it, each once: a type may hold itself."""
    if isinstance(info, tuple):
        yield from itertools.chain.from_iterable(_parts(each, seen) for each in info)
    elif isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field) and id(info) not in seen:
        seen.add(id(info))
        yield info
        yield from _parts(tuple(getattr(info, name) for name in info.__struct_fields__), seen)


def _name(annotation: Any) -> str:  # noqa: ANN401 - any type
    return getattr(annotation, "__qualname__", None) or str(annotation)
