"""Where things are on the broker: the names and arguments that publishers and consumers agree on, without a word about them on the wire.

    publish ─▶ exchange `postroom` (direct)
                 ├─ emails ───────────────────────▶ queue `emails`            an ordinary queue
                 ├─ emails#0 … emails#31 ─────────▶ queues `emails#0` …       an ordered one: lanes, shared out among its partitions
                 └─ orders ─▶ exchange `postroom.orders` (fanout)
                                ├───────────────▶ queue `orders.mail`         a topic: one queue for each group
                                └───────────────▶ queue `orders.stock`

A message of an ordered queue is sent to the lane of its key. There are always LANES of them, so a publisher needs to know whether a queue is
ordered, but not into how many partitions. `#` is in no queue's name, so neither kind can be taken for the other.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from postroom.adapters.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from postroom.adapters.seam import Queue

__all__ = ["LANES", "Binding", "Carrier", "Exchange", "Layout", "QueueType", "lane_key", "layout", "partition_for", "published_to", "topic_exchange"]

LANES = 32
"""Into how many lanes the keys of an ordered queue are hashed, for ever; the most partitions that it can have."""

UNLIMITED = 2**31 - 1
"""The delivery limit: the ledger counts, not the broker. (RabbitMQ 4 has 20 by default; -1 would mean no limit there, and not before.)"""


class QueueType(Enum):
    """What kind of queue RabbitMQ keeps."""

    QUORUM = "quorum"
    CLASSIC = "classic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier:
    """What carries one line of jobs: a queue of the broker's, or the `partitions` of an ordered one (0: it is not ordered).

    `retries` names the queue beside a foreign one, where what is ours goes: the foreign one is never published to.
    """

    name: str
    partitions: int = 0
    dead_letter: str
    retries: str = ""

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that hold its jobs."""
        return tuple(map(self.partition, range(self.partitions))) or (self.name,)

    def partition(self, number: int) -> str:
        """The name that one of its partitions has or would have."""
        return f"{self.name}#{number}"


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange, durable."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Binding:
    """From an exchange to a queue or to another exchange."""

    source: str
    destination: str
    key: str
    to_exchange: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """All that one `Queue` needs on the broker, in the order of its making. `queues` gives each one's arguments.

    `foreign` queues must be there: their owner makes them.
    """

    carriers: tuple[Carrier, ...]
    foreign: tuple[str, ...]
    exchanges: tuple[Exchange, ...]
    queues: Mapping[str, Mapping[str, Any]]
    bindings: tuple[Binding, ...]


def lane_key(queue: str, ordering_key: str | None, message_id: str) -> str:
    """The routing key of a message to an ordered queue. One without an ordering key may go to any lane."""
    return f"{queue}#{_lane(ordering_key, message_id)}"


def partition_for(carrier: Carrier, ordering_key: str | None, message_id: str) -> str:
    """The name of the queue where such a message of a carrier is."""
    return carrier.queues[_lane(ordering_key, message_id) % len(carrier.queues)]


def published_to(routing_key: str, carrier: str) -> str:
    """The queue or topic that a message in this carrier was published to. A foreign one may have come with any routing key."""
    name = routing_key.partition("#")[0]
    return name if carrier == name or carrier.startswith(f"{name}.") else carrier


def _carriers(queue: Queue, partitions: int) -> tuple[Carrier, ...]:
    """What a queue is carried by; `partitions` are for ordered ones."""
    count = partitions if queue.ordered else 0
    backs = {name: queue.back_to(name) for name in queue.foreign_carriers}
    return tuple(Carrier(name=name, partitions=count, dead_letter=queue.dead_letter_of(name), retries=backs.get(name, "")) for name in queue.carriers)


def layout(queue: Queue, exchange: str, partitions: int, queue_type: QueueType) -> Layout:
    """Lay a queue out. The last partition is made first, so an ordered queue that has its partition 0 has them all.

    Raises ConfigurationError for a foreign queue that is ordered, or a topic: that is more than one queue here.
    """
    if queue.foreign and (queue.ordered or queue.groups):
        raise ConfigurationError(f"queue {queue.name!r}: on RabbitMQ a foreign queue is one queue, neither ordered nor with groups")
    carriers = _carriers(queue, partitions)
    ours = tuple(carrier for carrier in carriers if not carrier.retries)
    topic = topic_exchange(queue, exchange)
    queues: dict[str, Mapping[str, Any]] = {carrier.dead_letter: _graveyard(queue_type) for carrier in carriers}
    for carrier in ours:
        queues |= dict.fromkeys(reversed(carrier.queues), _arguments(carrier, queue_type))
    return Layout(
        carriers=carriers,
        foreign=queue.foreign_carriers,
        exchanges=(Exchange(exchange, "direct"), *((topic,) if queue.groups else ())),
        queues=queues,
        bindings=tuple(_bindings(queue, ours, exchange, topic.name)),
    )


def topic_exchange(queue: Queue, exchange: str) -> Exchange:
    """The exchange that a topic has, or would have, behind that of all queues."""
    return Exchange(f"{exchange}.{queue.name}", "direct" if queue.ordered else "fanout")


def _lane(ordering_key: str | None, message_id: str) -> int:
    key = message_id if ordering_key is None else ordering_key
    return zlib.crc32(key.encode(errors="surrogatepass")) % LANES


def _bindings(queue: Queue, carriers: tuple[Carrier, ...], exchange: str, topic: str) -> Iterator[Binding]:
    if queue.groups:
        yield from (Binding(exchange, topic, key, to_exchange=True) for key in _keys(queue.name, ordered=queue.ordered))
    for carrier in carriers:
        for lane, key in enumerate(_keys(carrier.name, ordered=queue.ordered)):
            target = carrier.queues[lane % len(carrier.queues)]
            yield Binding(exchange, target, key)
            if queue.groups:
                yield Binding(topic, target, key.replace(carrier.name, queue.name, 1))


def _keys(name: str, *, ordered: bool) -> list[str]:
    return [f"{name}#{lane}" for lane in range(LANES)] if ordered else [name]


def _arguments(carrier: Carrier, queue_type: QueueType) -> Mapping[str, Any]:
    """Of a queue that holds jobs. What the broker itself gives up goes to the dead letters too, at least once on a quorum queue.

    The default exchange reaches a queue by its name without a binding that could be missing.
    """
    arguments: dict[str, Any] = {
        "x-queue-type": queue_type.value,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": carrier.dead_letter,
        "x-overflow": "reject-publish",
    }
    if queue_type is QueueType.QUORUM:
        arguments |= {"x-dead-letter-strategy": "at-least-once", "x-delivery-limit": UNLIMITED}
    if carrier.partitions:
        arguments["x-single-active-consumer"] = True
    return arguments


def _graveyard(queue_type: QueueType) -> Mapping[str, Any]:
    """Of a queue of dead letters. Looking at them counts as deliveries: no limit may bite."""
    return {"x-queue-type": queue_type.value, **({"x-delivery-limit": UNLIMITED} if queue_type is QueueType.QUORUM else {})}
