"""The transactional outbox: a job is written in the caller's own transaction, and a relay publishes it to the broker."""

from postroom.adapters.sql.engine import prepare

from .envelope import Envelope, read_envelope
from .options import RelayOptions
from .outbox import Draft, Outbox
from .parked import Parked, ParkedRow
from .relay import Relay

__all__ = ["Draft", "Envelope", "Outbox", "Parked", "ParkedRow", "Relay", "RelayOptions", "prepare", "read_envelope"]
