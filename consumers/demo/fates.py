"""What becomes of a job whose worker was killed: each kind of broker has its own way to miss it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .app import LEASE

if TYPE_CHECKING:
    from postroom.adapters.seam import Capabilities

__all__ = ["Fate", "fate_on"]


@dataclass(frozen=True, slots=True)
class Fate:
    """`killed` ends the sentence of the kill, `missed` begins that of the second worker."""

    killed: str
    missed: str


_LEASED = Fate("to the broker the job still runs", f"A second worker waits until the lease of {LEASE:g} s ends, and is given the job again.")
_FATES = {
    "rabbitmq": Fate(
        "RabbitMQ sees its connection\ndie, and puts the job back into the queue",
        "A second worker starts, and is given the job again at once.",
    ),
    "kafka (classic)": Fate(
        "its group has not committed\nthe job's offset",
        "A second worker joins the group. Kafka waits for the heartbeats of the first one until its session\n"
        "times out, gives the second one its partition, and reads on from the committed offset: the job again.",
    ),
    "kafka (share)": Fate(
        "the broker has the job as\nacquired, and not as accepted",
        "A second worker joins the share group. The broker gives up the dead worker's hold on the job, and\ngives it out again.",
    ),
}


def fate_on(capabilities: Capabilities) -> Fate:
    """As the broker with these capabilities has it."""
    return _FATES.get(capabilities.name, _LEASED)
