"""What can be chosen about a relay."""

from __future__ import annotations

from dataclasses import dataclass, field

from postroom.adapters.errors import ConfigurationError
from postroom.adapters.numbers import flaw, flaws

from .backoff import Backoff

__all__ = ["RelayOptions"]

DAY = 86400.0
MOST_ROWS = 10_000
"""What fits into one statement on every database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions:
    """All times are in seconds; the defaults fit a service with up to some thousand jobs a second.

    `batch` rows and `batch_bytes` of payload are held in memory and sent at a time, at most (one larger payload travels alone).
    `lease`: how long other relays leave this one's lanes alone when nothing is heard of it any more. It is renewed every third of it.
    `poll_min` is the pause after a round that sent something, doubled after each empty round up to `poll_max`.
    `backoff`: how long a row waits that the broker would not take now; after `max_attempts` such answers it is parked.
    `outage`: how long the relay itself waits while the database or the broker gives no answer. That costs no row an attempt.
    `retention`: how long sent rows are kept. Once in `tidy_every`, what is older is removed, `tidy_batch` rows at a time between rounds.
    """

    batch: int = 500
    batch_bytes: int = 8 * 2**20
    lease: float = 30.0
    poll_min: float = 0.05
    poll_max: float = 1.0
    backoff: Backoff = field(default_factory=Backoff)
    max_attempts: int = 20
    outage: Backoff = field(default_factory=lambda: Backoff(first=0.2, cap=15.0))
    retention: float = 7 * DAY
    tidy_every: float = 60.0
    tidy_batch: int = 1000

    def __post_init__(self) -> None:
        """Raise ConfigurationError for numbers that no relay could work with."""
        wrong = [flaw(name, getattr(self, name), whole=True) for name in ("batch", "batch_bytes", "max_attempts", "tidy_batch")]
        wrong += [flaw(name, getattr(self, name), unit="seconds") for name in ("lease", "poll_min", "poll_max", "retention", "tidy_every")]
        if any(wrong):
            raise ConfigurationError(f"{type(self).__name__}: {flaws(*wrong)}")
        counts = (self.batch, self.batch_bytes, self.max_attempts, self.tidy_batch)
        rules = {
            "batch, batch_bytes, max_attempts and tidy_batch are at least 1": min(counts) >= 1,
            f"batch is at most {MOST_ROWS}": self.batch <= MOST_ROWS,
            "lease and tidy_every are more than 0": min(self.lease, self.tidy_every) > 0,
            "0 < poll_min <= poll_max": 0 < self.poll_min <= self.poll_max,
            "retention is not negative": self.retention >= 0,
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise ConfigurationError(f"{self}: {'; '.join(broken)}")
