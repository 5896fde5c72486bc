"""How a worker's run ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`failed`: with `drain`, how many jobs were added to the dead letters of the worker's queues meanwhile.

    `counts`: how many deliveries this process settled in which way. `signal`: the one that stopped it, if one did.
    `hanging`: handlers that still run though nobody waits for them any more.
    """

    failed: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    signal: int | None = None
    hanging: int = 0
