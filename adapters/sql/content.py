"""A row as the message it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from postroom.adapters.machine import UNLIMITED
from postroom.adapters.seam import Message

if TYPE_CHECKING:
    from sqlalchemy import Row

__all__ = ["CONTENT", "message_of", "pack", "unpack"]

CONTENT = ("seq", "id", "body", "headers", "ordering_key", "attempts", "max_attempts")
"""The columns of `postroom_jobs` that a message is made of, and its count of attempts."""

pack = msgspec.msgpack.Encoder().encode
"""Headers as they are stored."""
unpack: Any = msgspec.msgpack.Decoder().decode
"""Headers as they were published."""


def message_of(row: Row[Any], queue: str) -> Message:
    """The message that was published to `queue`."""
    limit = None if row.max_attempts == UNLIMITED else row.max_attempts
    return Message(id=row.id, queue=queue, body=row.body, headers=unpack(row.headers), ordering_key=row.ordering_key, max_attempts=limit)
