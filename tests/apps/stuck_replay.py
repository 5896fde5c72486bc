"""`postroom dead replay --all --no-canary` that stops for good at the second letter, before or after it is put back, and waits to be killed."""

import sys
import threading
from collections.abc import Sequence

from postroom.adapters.sql.letters import SqlDeadLetters
from postroom.consumers.cli import main

when = sys.argv[1]
put_back = SqlDeadLetters.put_back
calls = 0


def put_back_and_stop(self: SqlDeadLetters, ids: Sequence[str], headers: object = None) -> Sequence[str]:
    global calls  # noqa: PLW0603 - of this process alone
    calls += 1
    back = put_back(self, ids, headers) if calls == 1 or when == "after" else []
    if calls == 2:
        sys.stdout.write("stopped\n")
        sys.stdout.flush()
        threading.Event().wait()
    return back


SqlDeadLetters.put_back = put_back_and_stop
main(["dead", "replay", "--all", "--no-canary"])
