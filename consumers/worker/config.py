"""What the supervisor tells a child, and what the child's exit code tells the supervisor."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from .settings import WorkerSettings  # noqa: TC001 - msgspec reads the annotations

__all__ = ["BROKEN", "REFUSED", "UNEQUIPPED", "UNREACHABLE", "ChildConfig"]

REFUSED, UNREACHABLE, BROKEN, UNEQUIPPED = 78, 69, 70, 72
"""Exit codes, as in sysexits.h: what it was told can't work; database or broker is away; a part broke down; a library is missing that a handler
needs. 0 is an orderly end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildConfig:
    """What a child is told, as one line of JSON. It has secrets in it, so it goes through a pipe and not into the command line.

    `marks` is the descriptor, inherited, of the file with its start marks. `number`: no other child of its supervisor that lives has it, from 0.
    """

    app: str
    database: str
    broker: str
    name: str
    number: int = 0
    marks: int
    settings: WorkerSettings
    log_level: int = logging.INFO
