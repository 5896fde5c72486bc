"""Python's garbage collector, in a process that Postroom has to itself."""

from __future__ import annotations

import gc

__all__ = ["collect_seldom"]

YOUNG = 10_000
"""So many objects more than there were, and the collector looks through them (by itself at 700, or 2,000)."""


def collect_seldom() -> None:
    """Spare this process most of the collector's work. Call it once, when all that stays is loaded.

    Rows and jobs come by the hundred, are gone in a moment, and hold no cycles: to look through them again and again, and through all modules with
    them, finds nothing and takes a fifth of the time. What there is now is not looked through any more. Who has asked for a larger threshold, or
    for no collector, keeps that.
    """
    gc.freeze()
    young, *older = gc.get_threshold()
    if 0 < young < YOUNG:
        gc.set_threshold(YOUNG, *older)
