"""A payload becomes bytes once, at enqueue, in the caller's transaction: what can't travel is refused there and not in a relay at night."""

from __future__ import annotations

from postroom.adapters.errors import InvalidMessage

from .strict import encode_json
from .typed import encode_typed, is_typed

__all__ = ["MAX_PAYLOAD", "encode_payload"]

MAX_PAYLOAD = 1_000_000
"""Bytes of JSON in one payload, unless the Outbox says otherwise: with its headers it fits into Kafka's default message of 1,048,588 bytes."""


def encode_payload(payload: object, limit: int = MAX_PAYLOAD, path: str = "payload") -> bytes:
    """Return the JSON of a dict, list, str, int, float, bool, None, or of a dataclass, msgspec Struct, pydantic model or attrs object.

    Raises InvalidMessage, beginning with the path of the bad value: `payload.items[3].price: NaN is not JSON`.
    """
    body = encode_typed(payload, path) if is_typed(payload) else encode_json(payload, path)
    if len(body) > limit:
        raise InvalidMessage(f"{path}: {len(body):,} bytes of JSON, and at most {limit:,} may travel; store it, and send where it is")
    return body
