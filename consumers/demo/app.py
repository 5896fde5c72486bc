"""The shop of the README with a short lease, so that nobody waits long in the story, and with a queue that is named by whoever starts it.

On a broker that others use too, each story has a queue of its own: it must not take their jobs, nor what another story has left behind.
"""

import os

from postroom.adapters.seam import Queue
from postroom.consumers import Jobs

from .shop import send_receipt

__all__ = ["LEASE", "QUEUE_VARIABLE", "application", "jobs"]

LEASE = 3.0
"""Seconds; a shop in earnest leaves it at 30."""

QUEUE_VARIABLE = "POSTROOM_DEMO_QUEUE"


def application(queue: str) -> Jobs:
    """The shop's handler, on this queue."""
    made = Jobs()
    made.handler("send-receipt", queue=Queue(name=queue, lease=LEASE), max_attempts=5)(send_receipt)
    return made


jobs = application(os.environ.get(QUEUE_VARIABLE, "emails"))
