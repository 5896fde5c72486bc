"""`postroom dead replay --all --no-canary` with letters by twos, that stops for good at the second two, before or after they are put back."""

import sys
import threading
from collections.abc import Sequence

from postroom.adapters.sql.letters import SqlDeadLetters
from postroom.consumers import replay
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
replay.BATCH = 2
main(["dead", "replay", "--all", "--no-canary"])
