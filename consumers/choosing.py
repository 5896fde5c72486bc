"""Letters to act on: a name that may be meant in two ways is asked about first."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from postroom.adapters.errors import ConfigurationError

from .dead import letters

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .dead import Selection
    from .letters import Letter, Place

__all__ = ["Ambiguous", "meant"]


class Ambiguous(ConfigurationError):
    """A name is the id of one letter, and the id or key of another: nothing was done."""


def meant(where: Iterable[Place], selection: Selection) -> Iterator[tuple[Place, Letter]]:
    """The letters of a selection, to act on them. Raises Ambiguous, also when its limit leaves but one of those that a name could mean."""
    if not selection.names:
        return letters(where, selection)
    found = list(letters(where, replace(selection, limit=None)))
    for name in selection.names:
        _require_one_meaning(name, [letter for _, letter in found if name in letter.names])
    return islice(found, selection.limit)


def _require_one_meaning(name: str, called: Sequence[Letter]) -> None:
    """A key names all letters about it; an id one alone. A parked row's is a number, as many a key is."""
    by_id = [letter for letter in called if letter.id == name and not (letter.envelope and name in {letter.envelope.id, letter.envelope.key})]
    if by_id and len(called) > 1:
        where = ", ".join(sorted({f"{letter.queue} ({letter.source})" for letter in called}))
        raise Ambiguous(f"{name!r} names {len(called)} letters, in {where}: name the job by its id, or narrow the choice by queue, type or error")
