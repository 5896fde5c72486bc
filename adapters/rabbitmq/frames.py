"""Publishes as bytes, many of them in one write: pika's own hands each frame to the kernel by itself, three for a message."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from pika import spec
from pika.frame import Method

if TYPE_CHECKING:
    from .connection import Connection

__all__ = ["Frames", "fits"]

CHUNK = 128 * 1024
"""How many bytes to hand over at once."""

_START = struct.Struct(">BHI")  # type, channel, size of what follows but for the end
_CONTENT = struct.Struct(">HxxQ")  # class, size of the body
_END = bytes([spec.FRAME_END])
_OVERHEAD = _START.size + len(_END)


def fits(properties: bytes, frame_max: int) -> bool:
    """Whether properties fit the one frame that they must travel in."""
    return _OVERHEAD + _CONTENT.size + len(properties) <= frame_max


class Frames:
    """Of one channel. On the connection's thread only."""

    def __init__(self, connection: Connection, channel: int) -> None:
        self._connection = connection
        self._channel = channel
        self._largest = connection.frame_max - _OVERHEAD
        self._methods: dict[tuple[str, str], bytes] = {}
        self._pending: list[bytes] = []
        self._size = 0

    def publish(self, exchange: str, routing_key: str, properties: bytes, body: bytes) -> None:
        """Have a message sent at the next `flush`, or before."""
        pending = self._pending
        pending.append(self._methods.get((exchange, routing_key)) or self._method(exchange, routing_key))
        content = _CONTENT.pack(spec.BasicProperties.INDEX, len(body)) + properties
        pending += (_START.pack(spec.FRAME_HEADER, self._channel, len(content)), content, _END)
        for start in range(0, len(body), self._largest):
            part = body[start : start + self._largest]
            pending += (_START.pack(spec.FRAME_BODY, self._channel, len(part)), part, _END)
        self._size += len(content) + len(body)
        if self._size > CHUNK:
            self.flush()

    def flush(self) -> None:
        """Send what is pending."""
        if self._pending:
            self._connection.write([b"".join(self._pending)])
            self._pending.clear()
            self._size = 0

    def _method(self, exchange: str, routing_key: str) -> bytes:
        """Mandatory: what reaches no queue comes back."""
        publish = spec.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=True)
        frame = self._methods[exchange, routing_key] = Method(self._channel, publish).marshal()
        return frame
