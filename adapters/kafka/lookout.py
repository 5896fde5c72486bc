"""Whether the topics that are read are there, and still the same.

Of one that was deleted the client says nothing for minutes; and one that was made anew in its place it reads on where the old one was left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from confluent_kafka import KafkaError

from .faults import MISSING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

__all__ = ["Identities", "Lookout"]

Identities: TypeAlias = "Mapping[str, str | KafkaError]"
"""Of topics: the id of each, which a new one of its name does not have, or why it has none."""


class Lookout:
    """`identify` asks the cluster, and returns nothing of what it can't tell now. For one thread."""

    def __init__(self, topics: Collection[str], identify: Callable[[Collection[str]], Identities]) -> None:
        self._topics = topics
        self._identify = identify
        self._ids: dict[str, str] = {}
        self._missing: frozenset[str] = frozenset()
        self.anew: set[str] = set()
        """Topics that were made anew: what was known of offsets means nothing in them. Whoever begins them at their beginning takes them out."""

    def look(self) -> tuple[Identities, Collection[str]]:
        """Return what there is, and the topics that have gone, come back or been made anew since the last look."""
        found = self._identify(self._topics)
        there = {topic: known for topic, known in found.items() if isinstance(known, str)}
        missing = frozenset(topic for topic, known in found.items() if isinstance(known, KafkaError) and known.code() in MISSING)
        anew = {topic for topic, known in there.items() if self._ids.get(topic, known) != known}
        changed = anew | (missing - self._missing) | (self._missing & there.keys())
        self.anew |= anew
        self._ids |= there
        self._missing = (self._missing | missing) - there.keys()
        return found, changed
