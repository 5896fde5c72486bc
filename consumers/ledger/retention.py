"""How long the ledger must remember: a message that comes back after its key was forgotten would be done twice."""

from __future__ import annotations

from postroom.adapters.errors import ConfigurationError

__all__ = ["check_retention"]


def check_retention(retention: float, longest_path: float) -> None:
    """Refuse to start with a `retention` (seconds that an ended row is kept) shorter than the `longest_path` (seconds) a message may take to return.

    The longest path is the caller's to know: the sum of all backoffs, or how long outbox, broker or dead letters keep a message, if that is longer.
    Raises ConfigurationError.
    """
    if not retention >= longest_path:
        raise ConfigurationError(
            f"the ledger keeps ended rows for {retention:g} s, but a message may come back after {longest_path:g} s and would be done a second time; "
            f"set the retention to {longest_path:g} s or more"
        )
