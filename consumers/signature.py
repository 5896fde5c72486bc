"""What a handler's signature asks for: the type of its payload, the context or not, sync or async."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from postroom.adapters.errors import ConfigurationError

from .payload import Convert, converter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Signature", "read_signature", "where"]

_POSITIONAL = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
_AT_MOST = 2  # payload and context


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """How to call a handler."""

    convert: Convert
    wants_context: bool
    is_async: bool


def where(function: Callable[..., Any]) -> str:
    """The file and line of a function, as editors and tracebacks write them."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)


def read_signature(function: Callable[..., Any], scope: Mapping[str, Any]) -> Signature:
    """Read `f(payload)` or `f(payload, context)`; an annotation written as text is looked up in `scope` and in the function's module.

    Raises ConfigurationError, with file and line, for anything else.
    """
    payload, *context = _parameters(function)
    try:
        convert = converter(_annotation(function, payload, scope))
    except (TypeError, NameError) as error:
        raise ConfigurationError(f"{where(function)}: the type of {payload!r} can't be served: {error}") from error
    return Signature(convert=convert, wants_context=bool(context), is_async=inspect.iscoroutinefunction(function))


def _parameters(function: Callable[..., Any]) -> list[str]:
    """The names of the one or two parameters that a worker passes; what has a default is the function's own business."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"{where(function)}: a handler can't be a generator: nobody would take what it yields")
    needed = [parameter for parameter in _signature(function).parameters.values() if parameter.default is parameter.empty]
    if not 1 <= len(needed) <= _AT_MOST or any(parameter.kind not in _POSITIONAL for parameter in needed):
        raise ConfigurationError(f"{where(function)}: a handler is f(payload) or f(payload, context), not f{_signature(function)}")
    return [parameter.name for parameter in needed]


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        import annotationlib  # noqa: PLC0415 - new in 3.14

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


def _annotation(function: Callable[..., Any], name: str, scope: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any type
    """Only the payload's: the context's may be a name that exists for type checkers alone."""
    annotation = _signature(function).parameters[name].annotation
    if annotation is inspect.Parameter.empty:
        return Any
    if isinstance(annotation, str):
        return eval(annotation, getattr(inspect.unwrap(function), "__globals__", {}), dict(scope))  # noqa: S307 - the handler's own source
    return annotation
