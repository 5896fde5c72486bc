"""How a dead letter is shown: as a row, as JSON, and at length."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from .output import clock, moment, visible

if TYPE_CHECKING:
    from postroom.consumers.dead import Group, Letter

__all__ = ["GROUP_COLUMNS", "LETTER_COLUMNS", "group_json", "group_row", "letter_json", "letter_row", "letter_text"]

LETTER_COLUMNS = ("SINCE", "WHERE", "TYPE", "KEY", "ATTEMPTS", "ERROR", "ID")
LINES = "\n\t"
GROUP_COLUMNS = ("COUNT", "ERROR", "TYPES", "FIRST", "LAST", "FOR EXAMPLE")


def letter_row(letter: Letter) -> tuple[object, ...]:
    """The cells of LETTER_COLUMNS; of the error, the first line."""
    known = letter.envelope
    where = {"queue": letter.queue, "outbox": f"outbox (for {letter.queue})", "ledger": f"lost (of {letter.queue})"}[letter.source]
    error = letter.error.partition("\n")[0]
    return clock(letter.died_at), where, known and known.type, known and known.key, letter.attempts, error, letter.id


def letter_json(letter: Letter, *, whole: bool = True) -> dict[str, Any]:
    """All of a letter; its payload and headers only where the `whole` is asked for."""
    known = letter.envelope
    return {
        "source": letter.source,
        "queue": letter.queue,
        "id": letter.id,
        "job": known and known.id,
        "type": known and known.type,
        "key": known and known.key,
        "error": letter.error,
        "attempts": letter.attempts,
        "replays": known.replays if known else 0,
        "enqueued_at": moment(known.enqueued_at) if known else None,
        "died_at": moment(letter.died_at),
        **({"headers": _portable(dict(letter.message.headers)), **_payload(letter.message.body)} if whole else {}),
    }


def letter_text(letter: Letter) -> str:
    """All of a letter, a line for each fact; the payload as JSON where it is JSON, else as Python's bytes."""
    facts = letter_json(letter)
    payload = visible(json.dumps(facts["payload"], indent=2, ensure_ascii=False), keep=LINES) if "payload" in facts else repr(letter.message.body)
    lines = [f"{name:<12} {visible(str(value))}" for name, value in facts.items() if name not in {"payload", "payload_base64", "headers", "error"}]
    return "\n".join(
        [
            *lines,
            f"{'headers':<12} {json.dumps(facts['headers'])}",
            f"{'error':<12} {visible(letter.error, keep=LINES)}",
            f"{'payload':<12} {payload}",
            "",
        ]
    )


def group_row(group: Group) -> tuple[object, ...]:
    """The cells of GROUP_COLUMNS."""
    types = ", ".join(f"{kind} {count}" for kind, count in group.types.most_common())
    return group.count, group.error, types, clock(group.first), clock(group.last), group.example


def group_json(group: Group) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "count": group.count,
        "error": group.error,
        "types": dict(group.types),
        "first": moment(group.first),
        "last": moment(group.last),
        "example": group.example,
    }


def _payload(body: bytes) -> dict[str, Any]:
    try:
        return {"payload": json.loads(body)}
    except ValueError:
        return {"payload_base64": base64.b64encode(body).decode()}


def _portable(value: Any) -> Any:  # noqa: ANN401 - a header's value, or a map of them
    if isinstance(value, dict):
        return {name: _portable(inner) for name, inner in value.items()}
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
