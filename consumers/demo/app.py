"""The shop of the README with a short lease, so that nobody waits long in the story."""

from postroom.adapters.seam import Queue
from postroom.consumers import Jobs

from .shop import send_receipt

__all__ = ["LEASE", "jobs"]

LEASE = 3.0
"""Seconds; a shop in earnest leaves it at 30."""

jobs = Jobs()
jobs.handler("send-receipt", queue=Queue(name="emails", lease=LEASE), max_attempts=5)(send_receipt)
