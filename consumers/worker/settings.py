"""How a worker is set up: the numbers, and the rules between them."""

from __future__ import annotations

from dataclasses import dataclass, field

from postroom.adapters.errors import ConfigurationError
from postroom.adapters.numbers import flaw, flaws
from postroom.outbox.options import RelayOptions

__all__ = ["BEATS", "WorkerSettings"]

BEATS = 3
"""A lease is renewed at least so often in its time: two beats may get lost before it runs out."""

DAY = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """All times are seconds.

    `concurrency`: handlers that run at once in one process. `lease`: how long after a crash of everything a job waits at most.
    `beat`: how often leases are renewed, by default a third of the shortest. `grace`: how long running handlers may go on after a stop was asked.
    `prefetch`: the most deliveries a process holds. `look_ahead`: the most jobs begun at once by one lane, as far as `round_budget` of measured
    handler time allows. `queues`: only these; all when empty. `relay`: also publish the outbox of the worker's database;
    None: another process does. `drain`: end when all is quiet. `retention`: how long the ledger remembers what is done.
    """

    concurrency: int = 8
    lease: float = 30.0
    beat: float | None = None
    grace: float = 30.0
    prefetch: int = 1000
    look_ahead: int = 128
    round_budget: float = 0.05
    queues: tuple[str, ...] = ()
    relay: RelayOptions | None = field(default_factory=RelayOptions)
    drain: bool = False
    retention: float = 7 * DAY

    def __post_init__(self) -> None:
        """Raise ConfigurationError for numbers that can't work."""
        if wrong := flaws(
            flaw("concurrency", self.concurrency, whole=True, least=1),
            flaw("lease", self.lease, above=0, unit="seconds"),
            flaw("beat", self.beat, unit="seconds") if self.beat is not None else None,
            flaw("grace", self.grace, least=0, unit="seconds"),
            flaw("prefetch", self.prefetch, whole=True, least=1),
            flaw("look_ahead", self.look_ahead, whole=True, least=1),
            flaw("round_budget", self.round_budget, least=0, unit="seconds"),
            flaw("retention", self.retention, above=0, unit="seconds"),
        ):
            raise ConfigurationError(wrong)
        if self.prefetch < self.concurrency:
            raise ConfigurationError("prefetch must be at least concurrency")
        self.beat_for(self.lease)

    def beat_for(self, shortest_lease: float) -> float:
        """Return how often to renew. Raises ConfigurationError when that is slower than a third of `shortest_lease`."""
        slowest = min(shortest_lease, self.lease) / BEATS
        if self.beat is not None and not 0 < self.beat <= slowest:
            raise ConfigurationError(f"beat {self.beat} s is too slow for a lease of {slowest * BEATS} s: at most a third of it, {slowest:.3g} s")
        return self.beat or slowest
