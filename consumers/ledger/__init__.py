"""The ledger: does a key's work once, however often its message comes, and is the authority on attempts on every backend."""

from __future__ import annotations

from .answers import (
    Abandoned,
    AlreadyDone,
    Answer,
    Claim,
    Conflict,
    Dead,
    Done,
    Exhausted,
    Failed,
    Finish,
    Finished,
    Later,
    Lost,
    Released,
    Result,
    RetryScheduled,
    RunningElsewhere,
    Started,
    Waiting,
)
from .decide import Mark
from .ledger import Ledger
from .retention import check_retention

__all__ = [
    "Abandoned",
    "AlreadyDone",
    "Answer",
    "Claim",
    "Conflict",
    "Dead",
    "Done",
    "Exhausted",
    "Failed",
    "Finish",
    "Finished",
    "Later",
    "Ledger",
    "Lost",
    "Mark",
    "Released",
    "Result",
    "RetryScheduled",
    "RunningElsewhere",
    "Started",
    "Waiting",
    "check_retention",
]
