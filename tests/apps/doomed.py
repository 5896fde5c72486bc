"""Jobs with one effect each. One of them, the victim, takes its process with it at the place that the plan names."""

import time
from dataclasses import dataclass

from dooms import IN_THE_HANDLER, PLAN, arm, strike, wait_for_company, watch
from effects import die, flag, write

from postroom.adapters.seam import Queue
from postroom.consumers import Backoff, Context, Fail, Jobs

MOST_ATTEMPTS = 3
PATIENCE = 5.0

jobs = Jobs(group=PLAN.queue)
QUEUE = Queue(name=PLAN.queue, lease=15.0)  # the shortest that a share group knows
watch()
arm()


@dataclass
class Fate:
    """What becomes of a job but for the crash. `patient`: it waits for the end of a victim that waits for company. `deadly`: nobody survives it."""

    patient: bool = False
    fails_first: bool = False
    hopeless: bool = False
    deadly: bool = False


@jobs.handler("job", queue=QUEUE, max_attempts=MOST_ATTEMPTS, backoff=Backoff(first=0.05, cap=0.2))
def job(fate: Fate, context: Context) -> None:
    """Have the effect, in the attempt's own transaction."""
    if fate.deadly:
        die()
    if context.job.key == PLAN.victim:
        wait_for_company()
    if fate.patient:
        _wait_for_the_end_of_the_victim()
    write(context.session.connection(), context.job.key, context.job.attempt)
    if context.job.key == PLAN.victim and PLAN.point == IN_THE_HANDLER:
        strike()
    if fate.hopeless:
        raise Fail("hopeless")
    if fate.fails_first and context.job.attempt == 1:
        raise ValueError("the first time it fails")


def _wait_for_the_end_of_the_victim() -> None:
    late = time.monotonic() + PATIENCE
    while flag("waiting").exists() and not flag("struck").exists() and time.monotonic() < late:
        time.sleep(0.01)
