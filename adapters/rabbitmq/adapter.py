"""The adapter of `amqp:` and `amqps:`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from postroom.adapters.declaring import require_consistent
from postroom.adapters.errors import ConfigurationError
from postroom.adapters.seam import Capabilities, Hold
from postroom.adapters.weights import Turns

from .broker import Broker
from .confirms import Confirms
from .consumer import RabbitConsumer
from .letters import RabbitDeadLetters
from .links import Link
from .options import Options, parse
from .publisher import Publisher
from .topology import Topology, count

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from postroom.adapters.seam import Adapter, Consumer, DeadLetters, Message, Outcome, Queue

    from .channel import Channel

__all__ = ["RabbitMQ", "open_rabbitmq"]

MAX_NAME = 200
_CONSUMER_TIMEOUT = "it is RabbitMQ's consumer timeout; if this server has another one, say so in the URL: consumer_timeout=<seconds>, 0 for none"


def open_rabbitmq(url: str, options: Mapping[str, object]) -> Adapter:
    """Read the URL, and what is said beside it (see `options`); nothing is connected before it is used. Raises ConfigurationError."""
    parsed = parse(url, options)
    _quieten()
    return RabbitMQ(parsed)


class RabbitMQ:
    """Queues of a RabbitMQ server. See `postroom.adapters.seam.Adapter`.

    Two connections, made when first needed and made anew by the next call when lost; each call blocks for `Options.connect_timeout` (10 s a host) at
    most to connect, and for `patience` (15 s) for any answer; a publish blocks until nothing has been confirmed for `confirm_timeout` (30 s).
    """

    capabilities = Capabilities(
        name="rabbitmq",
        durable=True,
        shared=True,
        native_delay=False,
        atomic_publish=False,
        clock_leases=False,
        counts_attempts=False,  # it counts deliveries, also those that were released
        fifo=False,  # what is released comes back in front, but not in its old order
        lists=False,
    )

    def __init__(self, options: Options) -> None:
        self._publishing: Link[Confirms] = Link(options, "publishing", Confirms.on)
        control = Link(options, "consuming", lambda connection: connection)
        self._broker = Broker(options=options, control=control, publisher=Publisher(options, self._publishing), topology=Topology(options))
        self._consumers: list[RabbitConsumer] = []

    def ensure(self, queues: Sequence[Queue], *, passive: bool = False) -> None:
        """Declare; see `Adapter.ensure`. Passive, bindings are not looked at: RabbitMQ tells nobody of them."""
        require_consistent(queues)
        with self._broker.channel() as channel:
            self._broker.topology.ensure(channel, queues, passive=passive)

    def prepare(self, queues: Collection[str], *, group: str, passive: bool = False) -> Mapping[str, Hold]:  # noqa: ARG002 - the seam's
        """Nothing to set up. The one limit is the server's consumer timeout, and it tells its clients none: the URL does (`consumer_timeout`)."""
        limit = self._broker.options.consumer_timeout
        return dict.fromkeys(queues, Hold(limit, _CONSUMER_TIMEOUT, assumed=True)) if limit else {}

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Publish, many at a time, each with its confirm; see `Adapter.publish`. Raises AccessDenied: it concerns no message."""
        self._publishing.require_open()
        if any(message.delay for message in messages):
            raise ConfigurationError("RabbitMQ can't hold a job back (no native_delay): publish it when it is due")
        return self._broker.publisher.publish(messages)

    def consume(self, queues: Mapping[str, int], *, group: str, prefetch: int, name: str) -> Consumer:  # noqa: ARG002 - a group has a carrier here
        """Subscribe; see `Adapter.consume`."""
        Turns(queues)  # refuses weights that can't be
        if prefetch < 1 or not 1 <= len(name) <= MAX_NAME:
            raise ConfigurationError(f"consume: give a prefetch of 1 or more and a name of 1 to {MAX_NAME} characters")
        with self._broker.channel() as channel:
            carriers = [self._broker.topology.find(channel, queue) for queue in queues]
        consumer = RabbitConsumer(self._broker, carriers, weights=queues, prefetch=prefetch, name=name)
        self._consumers = [*(other for other in self._consumers if not other.closed), consumer]
        return consumer

    def dead_letters(self, queue: str) -> DeadLetters:
        """The dead letters of one carrier; see `DeadLetters`. Raises ConfigurationError when it is not declared."""
        return RabbitDeadLetters(self._broker, self._broker.find(queue))

    def abandon(self, name: str) -> int:  # noqa: ARG002 - see the seam
        """Nothing to do: what a process held went back when its connection broke."""
        self._publishing.require_open()
        return 0

    def carriers(self) -> Sequence[str]:
        """Those that were declared here, or looked for and found: RabbitMQ lists none to its clients."""
        return self._broker.topology.names

    def depth(self, queue: str) -> Mapping[str, int]:
        """Ready messages are pending; running are those that consumers of this adapter hold: RabbitMQ does not tell of others."""
        with self._broker.channel() as channel:
            try:
                carrier = self._broker.topology.find(channel, queue)
            except ConfigurationError:
                return dict.fromkeys(("pending", "running", "failed"), 0)
            running = sum(consumer.outstanding(queue) for consumer in self._consumers if not consumer.closed)
            return {"pending": _total(channel, *carrier.queues), "running": running, "failed": _total(channel, carrier.dead_letter)}

    def tidy(self, *, older_than: float, limit: int = 1000) -> int:  # noqa: ARG002 - see the seam
        """Nothing to remove: RabbitMQ forgets what is acked."""
        return 0

    def close(self) -> None:
        """Close the consumers and both connections; blocks for some seconds at most, whatever the broker does."""
        for consumer in self._consumers:
            consumer.close()
        self._broker.control.close()
        self._publishing.close()


def _quieten() -> None:
    """pika logs every step, and with a traceback what callers get as an error. Who wants to read that gives its logger a level."""
    logger = logging.getLogger("pika")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)


def _total(channel: Channel, *queues: str) -> int:
    return sum(count(channel, queue) or 0 for queue in queues)
