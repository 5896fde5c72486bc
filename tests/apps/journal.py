"""What processes that are about to be killed have done, line by line, in a file that outlives them; and what the test wants of them."""

import json
import os
import time
from dataclasses import dataclass

from effects import flag

COMPANY = 45.0
"""How long (seconds) the victim waits at most for other jobs to be in its process: far longer than it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who is killed, where, and with whom: `company` jobs in its process's hands, and with `family` its supervisor too."""

    queue: str
    point: str
    victim: str
    company: int = 1
    family: bool = False


def plan() -> Plan:
    """The plan of this test."""
    return Plan(**json.loads(flag("plan").read_text()))


def note(what: str, **more: object) -> None:
    """Write a line. One write to a file that is only appended to: lines of several processes don't mix."""
    line = json.dumps({"what": what, "pid": os.getpid(), "at": time.time(), **more}) + "\n"
    journal = os.open(flag("journal"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(journal, line.encode())
    os.close(journal)
