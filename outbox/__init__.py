"""The transactional outbox: jobs are written in the caller's transaction; a relay publishes them to a broker."""

from postroom.adapters.sql.engine import prepare

from .envelope import Envelope
from .outbox import Draft, Outbox

__all__ = ["Draft", "Envelope", "Outbox", "prepare"]
