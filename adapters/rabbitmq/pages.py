"""Letters by the time of their deaths, in pages. A broker gives them in any order: what was looked at goes behind what was not."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from postroom.adapters.seam import DeadLetter

__all__ = ["Pages", "rank"]

MOST = 2000
"""How many letters to keep for who reads on at once."""
MOST_BYTES = 8 * 2**20
"""The same, of bodies; but for what was asked for."""


def rank(letter: str) -> tuple[float, str]:
    """The place of a letter with this id among all others: it starts with the time."""
    try:
        seconds = float(letter.partition("-")[0])
    except ValueError:
        seconds = 0.0
    return seconds if math.isfinite(seconds) else 0.0, letter


class Pages:
    """What one look at all letters has shown: the `limit` oldest behind the letter `after`, and what fits of those that follow."""

    def __init__(self, letters: Iterable[DeadLetter], limit: int, after: str | None) -> None:
        self._letters: list[DeadLetter] = []
        size = 0
        for letter in letters:
            if after is None or rank(letter.id) > rank(after):
                insort(self._letters, letter, key=_rank_of)
                size += len(letter.message.body)
            while len(self._letters) > limit and (len(self._letters) > MOST or size > MOST_BYTES):
                size -= len(self._letters.pop().message.body)

    def behind(self, after: str | None, limit: int) -> Sequence[DeadLetter]:
        """The next ones."""
        start = 0 if after is None else bisect_right(self._letters, rank(after), key=_rank_of)
        return self._letters[start : start + limit]


def _rank_of(letter: DeadLetter) -> tuple[float, str]:
    return rank(letter.id)
