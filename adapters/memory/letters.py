"""The dead letters of one carrier of a Memory."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from postroom.adapters.seam import DeadLetter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroom.adapters.seam import Header

    from .store import Carrier, Entry, Store

__all__ = ["MemoryDeadLetters"]


class MemoryDeadLetters:
    """See `postroom.adapters.seam.DeadLetters`. A letter's id names one death: a job that dies again gets another one."""

    def __init__(self, store: Store, carrier: Carrier) -> None:
        self._store = store
        self._carrier = carrier

    def list(self, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        """Return letters by the order of their death."""
        with self._store.changed:
            self._store.require_open()
            behind = (letter for letter in self._carrier.dead.items() if after is None or letter[0] > after)
            return [_letter(letter, entry) for letter, entry in itertools.islice(behind, limit)]

    def take(self, ids: Sequence[str]) -> Sequence[DeadLetter]:
        """Remove and return letters; in an ordered queue the next job of the key may go then."""
        with self._store.changed:
            taken = self._dig_out(ids)
            for entry in taken.values():
                self._store.forget(entry)
            self._store.changed.notify_all()
            return [_letter(letter, entry) for letter, entry in taken.items()]

    def put_back(self, ids: Sequence[str], headers: Mapping[str, Mapping[str, Header]] | None = None) -> Sequence[str]:
        """failed -> pending."""
        given = headers or {}
        with self._store.changed:
            revived = self._dig_out(ids)
            for letter, entry in revived.items():
                self._store.revive(entry, replace(entry.message, headers={**entry.message.headers, **given.get(letter, {})}))
            self._store.changed.notify_all()
            return [*revived]

    def _dig_out(self, ids: Sequence[str]) -> dict[str, Entry]:
        self._store.require_open()
        return {letter: self._carrier.dead.pop(letter) for letter in ids if letter in self._carrier.dead}


def _letter(letter: str, entry: Entry) -> DeadLetter:
    job = entry.job
    return DeadLetter(
        id=letter,
        message=entry.message,
        queue=entry.carrier.name,
        reason=job.last_error or "",
        attempts=job.attempts,
        died_at=job.finished_at or 0.0,
    )
