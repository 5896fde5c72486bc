"""Messages as AMQP carries them: properties encoded once, headers of our own beside the user's, the broker's own never sent on.

What another program sent is kept as it came: its properties travel to the dead letters and back, whatever is in them.
"""

from __future__ import annotations

import copy
import struct
from typing import TYPE_CHECKING, Any

from pika import BasicProperties
from pika.exceptions import AMQPError

from postroom.adapters.errors import InvalidMessage
from postroom.adapters.seam import Message

from .layout import published_to

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from postroom.adapters.seam import Header

__all__ = ["BROKER_OWNED", "OURS", "earlier_attempts", "encode", "encoded", "message_of", "ordering_key", "republished"]

OURS = "postroom-rabbitmq-"
"""Headers of the adapter's own start so: nobody above sees them."""
ORDERING_KEY = f"{OURS}ordering-key"
EXPIRATION = f"{OURS}original-expiration"

BROKER_OWNED = frozenset(
    {
        *("CC", "BCC", "x-death", "x-delivery-count", "x-acquired-count"),
        *(f"x-{which}-death-{what}" for which in ("first", "last") for what in ("exchange", "queue", "reason")),
    }
)
"""Headers by which RabbitMQ keeps its own books, or sends a message elsewhere too: a copy that carries them is counted, or routed, wrongly."""

PERSISTENT = 2
_PLAIN = frozenset({str, int, bool, bytes, type(None)})
_UNENCODABLE = (AMQPError, struct.error, AssertionError, ValueError, TypeError, AttributeError)


def encode(message: Message) -> bytes:
    """Return the properties of a message to be published. Raises InvalidMessage for what AMQP can't carry, with its path."""
    headers: dict[str, Any] = {name: value for name, value in message.headers.items() if name not in BROKER_OWNED}
    if message.ordering_key is not None:
        headers[ORDERING_KEY] = message.ordering_key
    return encoded(BasicProperties(headers=headers, message_id=message.id, delivery_mode=PERSISTENT))


def encoded(properties: BasicProperties) -> bytes:
    """Return properties in bytes. Raises InvalidMessage."""
    try:
        return b"".join(properties.encode())
    except _UNENCODABLE as error:
        raise InvalidMessage(_culprit(properties) or f"properties: {type(error).__name__}: {error}") from None


def message_of(properties: BasicProperties, body: bytes, *, routing_key: str, carrier: str) -> Message:
    """Read a message that came from `carrier`: headers of types that no other broker has are left out here, and kept in the properties."""
    headers: Mapping[Any, Any] = properties.headers or {}
    return Message(
        id=_text(properties.message_id),
        queue=published_to(routing_key, carrier),
        body=body,
        headers={name: value for name, value in _portable(headers.items()) if _is_users(name)},
        ordering_key=ordering_key(properties),
    )


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


def _portable(items: Iterable[tuple[Any, Any]]) -> Iterable[tuple[str, Header]]:
    for name, value in items:
        if type(value) in _PLAIN and isinstance(name, str):
            yield name, value
        elif isinstance(value, int):
            yield name, int(value)  # pika has a class of its own for long ones


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
    except _UNENCODABLE:
        return False
    return True
