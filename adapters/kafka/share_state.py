"""How far a share group is: read from the topic where brokers keep it, because the client library has no call for it yet.

The format is Kafka's own (ShareSnapshot and ShareUpdate, version 0); a record of another version is passed over.
"""

from __future__ import annotations

import base64
import struct
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .reader import Reader

__all__ = ["STATE_TOPIC", "Progress", "ShareState", "as_java_writes_it", "home_of", "progress_of"]

STATE_TOPIC = "__share_group_state"

_SNAPSHOT, _UPDATE = 0, 1
_START = {_SNAPSHOT: struct.Struct(">iiiqqq"), _UPDATE: struct.Struct(">iiq")}
_START_FIELD = {_SNAPSHOT: 3, _UPDATE: 2}
_BATCH = struct.Struct(">qqbh")
_COMPLETED_TAG = 0


class Progress(NamedTuple):
    """All below `start` is done, and `completed` of those behind it."""

    start: int
    completed: int


@dataclass(slots=True)
class _Pages:
    """What was read of one partition of the topic."""

    next: int = 0
    found: dict[bytes, Progress] = field(default_factory=dict)


class ShareState:
    """Thread-safe; reads each record once."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._pages: dict[int, _Pages] = {}

    def progress(self, group: str, topic_id: str, partition: int, homes: int) -> Progress:
        """How far the group is in one partition of a topic; `homes` is how many partitions the brokers' own topic has."""
        name = group.encode()
        key = struct.pack(f">h{len(name)}s16si", len(name), name, base64.urlsafe_b64decode(f"{topic_id}=="), partition)
        home = home_of(group, topic_id, partition, homes)
        with self._lock:
            pages = self._pages.setdefault(home, _Pages())
            for record in self._reader.read(STATE_TOPIC, pages.next, home):
                pages.next = (record.offset() or 0) + 1
                _turn(pages, record.key() or b"", record.value())
            return pages.found.get(key, Progress(0, 0))


def as_java_writes_it(topic_id: str) -> str:
    """A topic's id as brokers name it, in the other alphabet of Base64 than the client library's."""
    return topic_id.replace("+", "-").replace("/", "_")


def home_of(group: str, topic_id: str, partition: int, homes: int) -> int:
    """In which partition the brokers keep it: by Java's hash of its name."""
    code = 0
    for letter in f"{group}:{topic_id}:{partition}":
        code = (31 * code + ord(letter)) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >> 31 else code
    return (0 if signed == -(1 << 31) else abs(signed)) % homes


def progress_of(kind: int, value: bytes, before: Progress) -> Progress:
    """What a record says; an update leaves out what did not change."""
    version, fields = struct.unpack_from(">h", value)[0], _START[kind].unpack_from(value, 2)
    if version != 0:
        return before
    start, completed = fields[_START_FIELD[kind]], _completed(value, 2 + _START[kind].size)
    return Progress(before.start if start < 0 else start, before.completed if completed is None else completed)


def _turn(pages: _Pages, key: bytes, value: bytes | None) -> None:
    kind, name = struct.unpack_from(">h", key)[0], key[2:]
    if value is None:
        pages.found.pop(name, None)
    elif kind in _START:
        pages.found[name] = progress_of(kind, value, pages.found.get(name, Progress(0, 0)))


def _completed(value: bytes, at: int) -> int | None:
    """The tagged field behind the batches."""
    batches, at = _varint(value, at)
    at += (batches - 1) * (_BATCH.size + 1)
    tags, at = _varint(value, at)
    for _ in range(tags):
        tag, at = _varint(value, at)
        size, at = _varint(value, at)
        if tag == _COMPLETED_TAG:
            return int.from_bytes(value[at : at + size], signed=True)
        at += size
    return None


def _varint(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while value[at] & 0x80:
        number |= (value[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return number | value[at] << shift, at + 1
