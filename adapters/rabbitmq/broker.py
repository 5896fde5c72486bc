"""What the parts of an adapter share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .channel import Channel

if TYPE_CHECKING:
    from .connection import Connection
    from .layout import Carrier
    from .links import Link
    from .options import Options
    from .publisher import Publisher
    from .topology import Topology

__all__ = ["Broker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """Two connections: an alarm of the broker's stops the one that publishes, and must not stop the acks of the other."""

    options: Options
    control: Link[Connection]
    publisher: Publisher
    topology: Topology

    def channel(self) -> Channel:
        """Return a channel for one errand. May block to connect. Raises Unavailable, AccessDenied or Closed."""
        return Channel(self.control.get(), self.options.patience)

    def find(self, name: str) -> Carrier:
        """Return a carrier by its name; see `Topology.find`."""
        with self.channel() as channel:
            return self.topology.find(channel, name)
