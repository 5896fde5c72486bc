"""Which letters of a dead-letter topic nobody has handled: what the records of the topic say, from the oldest that is left to the end, and no more.

So all processes see the same letters, whenever they began to read. A record is a letter, or a *mark*, by which who has handled letters names them.
A worker that is killed when its letter is confirmed, and its delivery is not settled, gets that delivery again and writes a *twin*: another letter
about one death. The first of them counts. Who handles it handles its twins, and those that come later.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from .wire import as_text, headers_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .reader import Reader
    from .wire import Pair

__all__ = ["CARRIER", "DEATH", "Index", "Mark"]

CARRIER, DEATH = "postroom-dead-carrier", "postroom-dead-death"
HANDLED, DEATHS = "postroom-dead-handled", "postroom-dead-handled-deaths"

REMEMBERED = 10_000
"""Of so many deaths, those that were handled last, a twin is known when it comes."""
KEPT = 1_000
"""So many of the newest records stay in the topic, whatever was handled of them: the marks among them tell which deaths that was."""


class Mark(NamedTuple):
    """What was handled: letters by their offsets, which all lie before it, and their deaths."""

    offsets: Sequence[int]
    deaths: Sequence[str]

    @property
    def headers(self) -> list[Pair]:
        """As it travels."""
        return [(HANDLED, json.dumps(self.offsets)), (DEATHS, json.dumps(self.deaths))]


@dataclass(slots=True)
class Index:
    """How far a topic was read, and what was found. Whoever calls its methods holds its `lock`."""

    topic_id: str | None = None
    next: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)
    _letters: dict[str, dict[int, str]] = field(default_factory=dict)
    """By carrier the deaths of the letters that no mark names, by offset, ascending."""
    _handled: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """Deaths, with the offset of the mark that names them, ascending."""
    _open: dict[str, Sequence[int]] = field(default_factory=dict)

    def read_on(self, reader: Reader, topic: str, topic_id: str | None) -> None:
        """Read what was added since, or all of a topic that was deleted and made again; forget what is not there any more."""
        if topic_id != self.topic_id:
            self.topic_id, self.next = topic_id, 0
            self._letters.clear()
            self._handled.clear()
            self._open.clear()
        for record in reader.read(topic, self.next):
            self.next = (record.offset() or 0) + 1
            self._learn(self.next - 1, dict(headers_of(record)))
        self._forget_before(reader.first(topic))

    def open(self, carrier: str) -> Sequence[int]:
        """The letters of a carrier that wait for somebody to handle them, oldest first."""
        if carrier not in self._open:
            firsts: dict[str, int] = {}
            for offset, death in self._letters.get(carrier, {}).items():
                firsts.setdefault(death, offset)
            self._open[carrier] = [offset for death, offset in firsts.items() if death not in self._handled]
        return self._open[carrier]

    def mark_of(self, carrier: str, offsets: Iterable[int]) -> Mark:
        """What says that these letters are handled; and their twins, and twins of what was handled before: an older mark may be gone before them."""
        letters = self._letters.get(carrier, {})
        deaths = {letters[offset] for offset in offsets}
        return Mark([offset for offset, death in letters.items() if death in deaths or death in self._handled], sorted(deaths))

    def note(self, mark: Mark, offset: int) -> None:
        """A mark lies here, or not before."""
        for letters in self._letters.values():
            for handled in mark.offsets:
                letters.pop(handled, None)
        for death in mark.deaths:
            self._handled[death] = offset
            self._handled.move_to_end(death)
        while len(self._handled) > REMEMBERED:
            self._handled.popitem(last=False)
        self._open.clear()

    @property
    def disposable(self) -> int:
        """The first offset whose record somebody may still need."""
        return max(0, min([self.next - KEPT, *(next(iter(letters)) for letters in self._letters.values() if letters)]))

    def _learn(self, offset: int, headers: Mapping[str, str | bytes | None]) -> None:
        if HANDLED in headers:
            self.note(Mark(_listed(headers[HANDLED]), _listed(headers.get(DEATHS))), offset)
        else:
            letters = self._letters.setdefault(sys.intern(as_text(headers.get(CARRIER)) or ""), {})
            letters[offset] = as_text(headers.get(DEATH)) or f"@{offset}"  # an older version does not tell
            self._open.clear()

    def _forget_before(self, first: int) -> None:
        for letters in self._letters.values():
            for offset in [*takewhile(lambda offset: offset < first, letters)]:
                del letters[offset]
                self._open.clear()
        for death in [death for death, _ in takewhile(lambda mark: mark[1] < first, self._handled.items())]:
            del self._handled[death]
            self._open.clear()


def _listed(header: str | bytes | None) -> list[Any]:
    found: list[Any] = json.loads(as_text(header) or "[]")
    return found
