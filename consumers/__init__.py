"""Consumers: typed handlers, each job's effect once, and the workers that run them.

What is listed here is imported when it is first asked for, and so are all of Postroom's tables with it: the command, which lives in this
package, must not take half a second to print its help.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .choosing import Ambiguous
    from .context import AsyncContext, Context, Job
    from .dead import Letter, Selection
    from .jobs import Jobs
    from .mapping import MappedJob
    from .office import DeadLetterOffice
    from .policy import Backoff, Fail, Retry
    from .replay import Fate, Unproven
    from .resending import Overdue, Resent, resend
    from .worker import Report, Stop, Supervisor, Worker, WorkerSettings, run_in_foreground

__all__ = [
    "Ambiguous",
    "AsyncContext",
    "Backoff",
    "Context",
    "DeadLetterOffice",
    "Fail",
    "Fate",
    "Job",
    "Jobs",
    "Letter",
    "MappedJob",
    "Overdue",
    "Report",
    "Resent",
    "Retry",
    "Selection",
    "Stop",
    "Supervisor",
    "Unproven",
    "Worker",
    "WorkerSettings",
    "resend",
    "run_in_foreground",
]

_HOMES = {
    "choosing": ("Ambiguous",),
    "context": ("AsyncContext", "Context", "Job"),
    "dead": ("Letter", "Selection"),
    "jobs": ("Jobs",),
    "mapping": ("MappedJob",),
    "office": ("DeadLetterOffice",),
    "policy": ("Backoff", "Fail", "Retry"),
    "replay": ("Fate", "Unproven"),
    "resending": ("Overdue", "Resent", "resend"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importlib.import_module(".tables", __name__)
    return getattr(importlib.import_module(f".{_HOME.get(name, 'worker')}", __name__), name)


def __dir__() -> list[str]:
    return __all__
