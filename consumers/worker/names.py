"""Names of workers and of what belongs to them: by its name, whoever sees a worker die can give up all that it held."""

from __future__ import annotations

import os
import secrets
import socket

__all__ = ["new_name", "relay_of"]

_LONGEST = 64
"""What fits into the relays' column."""


def new_name() -> str:
    """Return a name for one run of one process, never used again: it fits the ledger's column and tells an operator where to look."""
    return f"{socket.gethostname()[:60]}-{os.getpid()}-{secrets.token_hex(6)}"


def relay_of(worker: str) -> str:
    """The name of a worker's relay: what makes the worker's name the only one is at its end."""
    return worker[-_LONGEST:]
