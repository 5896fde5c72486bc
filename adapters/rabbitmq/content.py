"""Messages as AMQP carries them: properties encoded once, headers of our own beside the user's, the broker's own never sent on.

What another program sent is kept as it came: its properties travel to the dead letters and back, whatever is in them.
"""

from __future__ import annotations

import copy
import hashlib
from typing import TYPE_CHECKING, Any

import msgspec
from pika import BasicProperties

from postroom.adapters.errors import InvalidMessage
from postroom.adapters.seam import Message

from . import tables
from .layout import published_to

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from postroom.adapters.seam import Header

__all__ = ["BROKER_OWNED", "OURS", "earlier_attempts", "encode", "encoded", "message_of", "ordering_key", "republished", "route_of"]

OURS = "postroom-rabbitmq-"
"""Headers of the adapter's own start so: nobody above sees them."""
ORDERING_KEY = f"{OURS}ordering-key"
EXPIRATION = f"{OURS}original-expiration"
EXCHANGE, ROUTING_KEY = f"{OURS}exchange", f"{OURS}routing-key"
ENVELOPE_ID = "postroom-id"
ORIGIN = "postroom-origin"
"""With a copy of another program's message travels what its properties were: the copy has them, too."""

BROKER_OWNED = frozenset(
    {
        *("CC", "BCC", "x-death", "x-delivery-count", "x-acquired-count"),
        *(f"x-{which}-death-{what}" for which in ("first", "last") for what in ("exchange", "queue", "reason")),
    }
)
"""Headers by which RabbitMQ keeps its own books, or sends a message elsewhere too: a copy that carries them is counted, or routed, wrongly."""

PERSISTENT = 2
_KEPT = ("content_type", "content_encoding", "correlation_id", "reply_to", "type", "app_id", "priority", "timestamp")
"""Properties that a copy has as the original had them."""
_TOLD = (*_KEPT, "message_id", "user_id", "expiration", "delivery_mode")
_PLAIN = frozenset({str, int, bool, bytes, type(None)})


def encode(message: Message) -> bytes:
    """Return the properties of a message to be published. Raises InvalidMessage for what AMQP can't carry, with its path."""
    headers: dict[str, Any] = {name: value for name, value in message.headers.items() if name not in BROKER_OWNED}
    if message.ordering_key is not None:
        headers[ORDERING_KEY] = message.ordering_key
    properties = BasicProperties(headers=headers, message_id=message.id, delivery_mode=PERSISTENT)
    if ORIGIN in headers:
        _restore(properties, headers[ORIGIN])
        return encoded(properties, foreign=True)
    return encoded(properties)


def encoded(properties: BasicProperties, *, foreign: bool = False) -> bytes:
    """Return properties in bytes; those of a `foreign` message with all headers that may have come. Raises InvalidMessage."""
    try:
        return tables.encode(properties) if foreign else b"".join(properties.encode())
    except tables.UNENCODABLE as error:
        raise InvalidMessage(_culprit(properties) or f"properties: {type(error).__name__}: {error}") from None


def message_of(properties: BasicProperties, body: bytes, *, exchange: str, routing_key: str, carrier: str) -> Message:
    """Read a message that came from `carrier`: headers of types that no other broker has are told among the properties of a foreign one."""
    headers: Mapping[Any, Any] = properties.headers or {}
    return Message(
        id=_text(properties.message_id) or _fingerprint(properties, body),
        queue=published_to(routing_key, carrier),
        body=body,
        headers={name: value for name, value in _portable(headers.items()) if _is_users(name)},
        ordering_key=ordering_key(properties),
        properties={} if ENVELOPE_ID in headers else _told(properties, route_of(properties, exchange, routing_key)),
    )


def route_of(properties: BasicProperties, exchange: str, routing_key: str) -> dict[str, str]:
    """How a foreign message was published, as headers: it has them where it was a dead letter before."""
    headers: Mapping[Any, Any] = properties.headers or {}
    if ENVELOPE_ID in headers:
        return {}
    return {EXCHANGE: str(headers.get(EXCHANGE, exchange)), ROUTING_KEY: str(headers.get(ROUTING_KEY, routing_key))}


def ordering_key(properties: BasicProperties) -> str | None:
    """Whom a delivery must not overtake."""
    key = (properties.headers or {}).get(ORDERING_KEY)
    return key if isinstance(key, str) else None


def earlier_attempts(properties: BasicProperties, *, redelivered: bool) -> int:
    """How often the broker says that it has delivered a message before, as well as it knows. Every version counts otherwise, releases included."""
    headers = properties.headers or {}
    counted = headers.get("x-acquired-count", headers.get("x-delivery-count", redelivered))
    return int(counted) if isinstance(counted, int) else 0


def republished(properties: BasicProperties, headers: Mapping[str, Header], *, user: str, without: frozenset[str] = frozenset()) -> BasicProperties:
    """The properties of a copy, `headers` laid over its own. It lives for ever: of an expiration only a header is left.

    Another user's name is left out: RabbitMQ takes none but the connection's own.
    """
    kept = {name: value for name, value in (properties.headers or {}).items() if name not in BROKER_OWNED and name not in without}
    if properties.expiration is not None:
        kept[EXPIRATION] = properties.expiration
    result = copy.copy(properties)
    result.headers = {**kept, **headers}
    result.expiration, result.delivery_mode = None, PERSISTENT
    result.user_id = properties.user_id if properties.user_id == user else None
    return result


def _told(properties: BasicProperties, route: Mapping[str, str]) -> dict[str, Any]:
    """What `Message.properties` says; plain JSON, so bytes are base64 there, and a table's dates and decimals are text."""
    told = {name: value for name in _TOLD if (value := getattr(properties, name)) is not None}
    headers: Mapping[Any, Any] = properties.headers or {}
    others = {str(name): value for name, value in headers.items() if not _is_portable(name, value) and _is_users(str(name))}
    return {"exchange": route[EXCHANGE], "routing_key": route[ROUTING_KEY], **_plain(told), **({"headers": _plain(others)} if others else {})}


def _plain(value: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a JSON object
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):  # lone surrogates, keys that are no text
        return {name: str(each).encode(errors="replace").decode() for name, each in value.items()}


def _restore(properties: BasicProperties, origin: object) -> None:
    try:
        told = msgspec.json.decode(str(origin)).get("properties", {})
        headers = told.get("headers", {})
    except (msgspec.MsgspecError, ValueError, AttributeError):  # somebody else's header of that name
        return
    for name in _KEPT:
        if name in told:
            setattr(properties, name, told[name])
    if isinstance(headers, dict):
        properties.headers = {**headers, **properties.headers}


def _fingerprint(properties: BasicProperties, body: bytes) -> str:
    """The id of a message that was sent without one: the same at each delivery, and in each copy."""
    parts = (properties.correlation_id, properties.timestamp, properties.type)
    return hashlib.blake2b(repr(parts).encode(errors="replace") + body, digest_size=16).hexdigest()


def _is_portable(name: object, value: object) -> bool:
    return isinstance(name, str) and (type(value) in _PLAIN or isinstance(value, int))


def _portable(items: Iterable[tuple[Any, Any]]) -> Iterable[tuple[str, Header]]:
    for name, value in items:
        if _is_portable(name, value):
            yield name, value if type(value) in _PLAIN else int(value)  # pika has a class of its own for long ones


def _is_users(name: str) -> bool:
    return name not in BROKER_OWNED and not name.startswith(OURS)


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


def _culprit(properties: BasicProperties) -> str:
    """Which part it is that can't be encoded."""
    if not _travels(BasicProperties(message_id=properties.message_id)):
        return f"id: {properties.message_id!r:.80} is not valid text of 255 bytes at most"
    for name, value in (properties.headers or {}).items():
        if not _travels(BasicProperties(headers={name: value})):
            can = "text, 64-bit integers, booleans, bytes and None can, under names of at most 255 bytes"
            return f"headers[{name!r:.80}]: {value!r:.80} can't travel; {can}"
    return ""


def _travels(properties: BasicProperties) -> bool:
    try:
        properties.encode()
    except tables.UNENCODABLE:
        return False
    return True
