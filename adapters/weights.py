"""Whose turn it is, among queues with weights: priority that starves nobody."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from .errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["Turns"]


class Turns:
    """Smooth weighted round robin (nginx's): weights {a: 5, b: 1, c: 1} give a a b a c a a, never a burst of five.

    Not thread-safe: one consumer's own. Raises ConfigurationError for no queue at all or a weight below 1.
    """

    def __init__(self, weights: Mapping[str, int]) -> None:
        if not weights or any(weight < 1 for weight in weights.values()):
            raise ConfigurationError(f"a consumer needs at least one queue, and each queue a weight of at least 1, not {dict(weights)}")
        self._weights = dict(weights)
        self._credit = dict.fromkeys(weights, 0)

    def pick(self, ready: Collection[str]) -> str:
        """The one of `ready` (not empty) whose turn it is. Those that are not ready gain no credit meanwhile: no burst when they come back."""
        for name in ready:
            self._credit[name] += self._weights[name]
        chosen = max(ready, key=self._credit.__getitem__)
        self._credit[chosen] -= sum(self._weights[name] for name in ready)
        return chosen

    def share(self, limit: int, ready: Collection[str]) -> Mapping[str, int]:
        """How many of the next `limit` turns fall to each of `ready`; those with none are left out."""
        return Counter(self.pick(ready) for _ in range(limit)) if ready else {}
