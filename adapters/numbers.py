"""Numbers that a caller chooses, judged before anything compares them: a timedelta, a text or a truth is told as what it is."""

from __future__ import annotations

import math
from datetime import timedelta

__all__ = ["flaw", "flaws"]


def flaw(name: str, value: object, *, whole: bool = False, least: float | None = None, above: float | None = None, unit: str = "") -> str | None:
    """Return in words what is wrong with `value` as the option `name`; None when it is a number within its bounds."""
    kind = "a whole number" if whole else "a number"
    if isinstance(value, timedelta):
        return f"{name} must be {kind} of seconds, not {value!r}; pass its total_seconds()"
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        return f"{name} must be {kind}{' of seconds' if unit == 'seconds' else ''}, not {value!r}"
    number = float(value)
    bound = f"more than {above:g}" if above is not None else f"at least {least:g}" if least is not None else "not nan"
    fits = number > above if above is not None else number >= least if least is not None else not math.isnan(number)
    return None if fits else f"{name} must be {bound}{f' {unit}' if unit else ''}, not {value!r}"


def flaws(*found: str | None) -> str:
    """Return all flaws as one text, empty when there is none."""
    return "; ".join(each for each in found if each)
