"""A relay in a process of its own, for tests that kill it. Its broker is a file: a message is there, durably, when it is confirmed.

    python relay_to_file.py DATABASE_URL FILE {run,drain,stall} LEASE_SECONDS

`stall` blocks between the confirm and the mark, once the file named FILE.confirmed says so.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from postroom.adapters.seam import Capabilities, Message, Outcome, Verdict
from postroom.adapters.sql.engine import open_engine
from postroom.outbox.options import RelayOptions
from postroom.outbox.relay import Relay


class FileBroker:
    """Appends a line for each message."""

    capabilities = Capabilities(
        name="file", durable=True, shared=True, native_delay=False, atomic_publish=False, clock_leases=False, counts_attempts=False
    )

    def __init__(self, path: Path, *, stall: bool) -> None:
        self._path = path
        self._stall = stall

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        with self._path.open("a") as file:
            for message in messages:
                file.write(json.dumps({"id": message.id, "key": message.headers["postroom-key"], "by": os.getpid()}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if self._stall:
            self._path.with_suffix(".confirmed").touch()
            threading.Event().wait()
        return [Outcome(Verdict.CONFIRMED)] * len(messages)

    def tidy(self, *, older_than: float, limit: int = 1000) -> int:  # noqa: ARG002 - the seam's
        return 0


def main(url: str, path: str, mode: str, lease: str) -> None:
    options = RelayOptions(batch=50, lease=float(lease), poll_min=0.01, poll_max=0.1)
    relay = Relay(open_engine(url), FileBroker(Path(path), stall=mode == "stall"), options=options)
    if mode == "run":
        relay.run(threading.Event())
    else:
        relay.drain()


if __name__ == "__main__":
    main(*sys.argv[1:])
