"""What the broker says when it refuses: codes, and the few texts of it that hold an answer."""

from __future__ import annotations

import re

from postroom.adapters.errors import AccessDenied, PostroomError, TopologyMismatch, Unavailable

__all__ = ["ACCESS_REFUSED", "LOCKED", "NOT_FOUND", "PRECONDITION_FAILED", "Refusal", "actual_value", "mismatch", "size_limit", "translated"]

CONTENT_TOO_LARGE = 311
ACCESS_REFUSED = 403
NOT_FOUND = 404
LOCKED = 405
PRECONDITION_FAILED = 406

_INEQUIVALENT = re.compile(r"inequivalent arg '([^']+)' for \w+ '.*' in vhost '.*': received (.+) but current is (.+)", re.DOTALL)
_VALUE = re.compile(r"(?:the value )?'(.*?)'(?: of type '\w+')?", re.DOTALL)
_TOO_LARGE = re.compile(r"message size \d+ is larger than (?:configured )?max size (\d+)")


class Refusal(Exception):
    """The broker closed a channel: what was asked on it last is refused. `code` is AMQP's, `text` the broker's own words (at most 255 bytes)."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code
        self.text = text


def translated(refusal: Refusal) -> PostroomError:
    """The error to raise where nobody expects a refusal."""
    kind = AccessDenied if refusal.code == ACCESS_REFUSED else Unavailable
    return kind(f"RabbitMQ refuses: {refusal}")


def mismatch(name: str, refusal: Refusal) -> TopologyMismatch:
    """The error for a declaration that differs from what is there."""
    found = _INEQUIVALENT.search(refusal.text)
    if not found:
        return TopologyMismatch(f"queue {name!r} is there with other arguments: {refusal}")
    argument, expected, actual = found[1], _value(found[2]), _value(found[3])
    return TopologyMismatch(f"queue {name!r}: expected {argument} {expected}, but it is there with {argument} {actual}")


def actual_value(argument: str, refusal: Refusal) -> str | None:
    """What a queue really has for `argument`, if this refusal says so."""
    found = _INEQUIVALENT.search(refusal.text)
    value = _VALUE.fullmatch(found[3]) if found and found[1] == argument else None
    return value[1] if value else None


def size_limit(refusal: Refusal) -> int | None:
    """The largest body (bytes) that the broker takes, if it was for its size that it refused a message."""
    found = _TOO_LARGE.search(refusal.text)
    return int(found[1]) if found and refusal.code in {PRECONDITION_FAILED, CONTENT_TOO_LARGE} else None


def _value(text: str) -> str:
    found = _VALUE.fullmatch(text)
    return repr(found[1]) if found else text
