"""What a handler's signature asks for: the type of its payload, the context or not, sync or async."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from postroom.adapters.errors import ConfigurationError

from .context import AsyncContext, Context
from .payload import Convert, converter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["Signature", "read_signature", "require_mapper", "where"]

_POSITIONAL = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
_AT_MOST = 2  # payload and context


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """How to call a handler. `is_async`: its body awaits, as far as one can see from outside, so it gets an AsyncContext."""

    convert: Convert
    wants_context: bool
    is_async: bool


def where(function: Callable[..., Any]) -> str:
    """The file and line of a function, as editors and tracebacks write them."""
    code = getattr(_innermost(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)


def read_signature(function: Callable[..., Any], scope: Mapping[str, Any]) -> Signature:
    """Read `f(payload)` or `f(payload, context)`; an annotation written as text is looked up in `scope` and in the function's module.

    Raises ConfigurationError, with file and line, for anything else.
    """
    payload, *context = _parameters(function)
    is_async = any(inspect.iscoroutinefunction(layer) for layer in _layers(function))
    for name in context:
        _require_its_context(function, name, scope, is_async=is_async)
    try:
        convert = converter(_annotation(function, payload, scope))
    except (TypeError, NameError) as error:
        raise ConfigurationError(f"{where(function)}: the type of {payload!r} can't be served: {error}") from error
    return Signature(convert=convert, wants_context=bool(context), is_async=is_async)


def require_mapper(function: Callable[..., Any]) -> None:
    """Raise ConfigurationError, with file and line, unless it can be called with one message and answers at once."""
    needed = [parameter for parameter in _signature(function).parameters.values() if parameter.default is parameter.empty]
    if len(needed) != 1 or needed[0].kind not in _POSITIONAL:
        raise ConfigurationError(f"{where(function)}: a mapper is f(message), not f{_signature(function)}")
    if any(inspect.iscoroutinefunction(layer) or _is_generator(layer) for layer in _layers(function)):
        raise ConfigurationError(f"{where(function)}: a mapper is an ordinary function: it returns a MappedJob or None, and waits for nothing")


def _parameters(function: Callable[..., Any]) -> list[str]:
    """The names of the one or two parameters that a worker passes; what has a default is the function's own business."""
    if any(map(_is_generator, (function, getattr(function, "__call__", None)))):  # noqa: B004 - that of an object may be one
        raise ConfigurationError(f"{where(function)}: a handler can't be a generator: nobody would take what it yields")
    needed = [parameter for parameter in _signature(function).parameters.values() if parameter.default is parameter.empty]
    if not 1 <= len(needed) <= _AT_MOST or any(parameter.kind not in _POSITIONAL for parameter in needed):
        raise ConfigurationError(f"{where(function)}: a handler is f(payload) or f(payload, context), not f{_signature(function)}")
    return [parameter.name for parameter in needed]


def _layers(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """From what is called to what somebody wrote: through partials, objects that can be called, and decorators that say what they wrap."""
    seen: list[object] = []
    inner: list[Any] = [function]
    while inner:
        layer = inner.pop()
        if layer is None or any(layer is other for other in seen):
            continue
        seen.append(layer)
        yield layer
        inner.append(getattr(layer, "__wrapped__", None))
        if isinstance(layer, partial):
            inner.append(layer.func)
        elif not (inspect.isroutine(layer) or inspect.isclass(layer)):
            inner.append(getattr(layer, "__call__", None))  # noqa: B004 - the method itself


def _innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    return list(_layers(function))[-1]


def _is_generator(function: object) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        import annotationlib  # noqa: PLC0415 - new in 3.14

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


def _require_its_context(function: Callable[..., Any], name: str, scope: Mapping[str, Any], *, is_async: bool) -> None:
    """The wrong one would hide from type checkers what must be awaited. A name that exists for them alone is theirs to judge."""
    try:
        annotation = _annotation(function, name, scope)
    except Exception:  # noqa: BLE001 - an annotation that nobody needs here
        return
    who, wrong, right = ("an async", Context, AsyncContext) if is_async else ("a sync", AsyncContext, Context)
    if annotation is wrong:
        raise ConfigurationError(f"{where(function)}: annotate {name!r} as {right.__name__}: that is what {who} handler gets, not {wrong.__name__}")


def _annotation(function: Callable[..., Any], name: str, scope: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any type
    annotation = _signature(function).parameters[name].annotation
    if annotation is inspect.Parameter.empty:
        return Any
    if isinstance(annotation, str):
        return eval(annotation, getattr(_innermost(function), "__globals__", {}), dict(scope))  # noqa: S307 - the handler's own source
    return annotation
