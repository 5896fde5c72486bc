"""The queues that are there: declared, compared, found again by their names."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from postroom.adapters.errors import ConfigurationError, TopologyMismatch
from postroom.adapters.seam import retries_of

from .layout import LANES, Carrier, layout, topic_exchange
from .refusals import ACCESS_REFUSED, LOCKED, NOT_FOUND, PRECONDITION_FAILED, Refusal, actual_value, mismatch, translated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pika.channel import Channel as PikaChannel

    from postroom.adapters.seam import Queue

    from .channel import Channel
    from .layout import Binding, Exchange, Layout
    from .options import Options

__all__ = ["Topology", "count"]


class Topology:
    """What this adapter knows of the broker's queues. Each method blocks as `Channel` does; none keeps a channel."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._declared: dict[str, Queue] = {}
        self._carriers: dict[str, Carrier] = {}

    @property
    def names(self) -> list[str]:
        """The carriers that were declared or looked for here, and found; sorted."""
        return sorted(self._carriers)

    def ensure(self, channel: Channel, queues: Sequence[Queue], *, passive: bool) -> None:
        """Compare all, then make what is missing. A topic may gain groups, and a queue priorities.

        Raises TopologyMismatch before anything is changed; AccessDenied where this user may not declare.
        """
        plans = [self._layout(queue) for queue in queues]
        for queue, plan in zip(queues, plans, strict=True):
            _compare_kind(channel, queue, self._options.exchange)
            _compare(channel, plan, passive=passive)
        if not passive:
            for plan in plans:
                _make(channel, plan)
            self._declared |= {queue.name: queue for queue in queues}
        self._carriers |= {carrier.name: carrier for plan in plans for carrier in plan.carriers}

    def find(self, channel: Channel, name: str) -> Carrier:
        """Return a carrier, declared here or by another process. Raises ConfigurationError when it is not declared."""
        known = self._carriers.get(name)
        if known is None:
            plain = count(channel, name) is not None
            partitions = 0 if plain else _partitions(channel, name)
            if not plain and not partitions:
                raise _undeclared(name)
            known = self._carriers[name] = _found(channel, name, partitions)
        return known

    def restore(self, channel: Channel, name: str, *, partly: bool) -> Carrier:
        """Find a carrier again that was there and may have been deleted, or made anew otherwise. One that was declared here is declared again.

        With `partly`, others of its queues are still read: it has as many as before, though one that is missing now makes it look like fewer.
        """
        if not partly:
            self._carriers.pop(name, None)
        for queue in list(self._declared.values()):
            if name in queue.carriers and partly:
                _make(channel, self._layout(queue))
            elif name in queue.carriers:
                self.ensure(channel, [queue], passive=False)
        return self.find(channel, name)

    def _layout(self, queue: Queue) -> Layout:
        return layout(queue, self._options.exchange, self._options.partitions, self._options.queue_type)


def _compare(channel: Channel, plan: Layout, *, passive: bool) -> None:
    for exchange in plan.exchanges:
        _compare_exchange(channel, exchange, passive=passive)
    for name in plan.foreign:
        if count(channel, name) is None:
            raise TopologyMismatch(f"queue {name!r}: expected another program to have declared it, and it is not there")
    for carrier in plan.carriers:
        _compare_order(channel, carrier)
    for name, arguments in plan.queues.items():
        _compare_queue(channel, name, arguments, passive=passive)


def _compare_kind(channel: Channel, queue: Queue, exchange: str) -> None:
    """A queue and a topic of one name would both be given each message, and nobody would read what the other one gets."""
    if queue.groups:
        plain = Carrier(name=queue.name, partitions=int(queue.ordered), dead_letter="").queues[0]
        if count(channel, plain) is not None:
            raise TopologyMismatch(f"queue {queue.name!r}: expected a topic with groups, but it is there as a queue")
    elif not queue.foreign and _is_there(channel, topic_exchange(queue, exchange)):
        raise TopologyMismatch(f"queue {queue.name!r}: expected a queue, but it is there as a topic with groups")


def _is_there(channel: Channel, exchange: Exchange) -> bool:
    try:
        channel.ask("exchange_declare", exchange=exchange.name, exchange_type=exchange.type, passive=True)
    except Refusal as refusal:
        if refusal.code == NOT_FOUND:
            return False
        raise translated(refusal) from None
    return True


def count(channel: Channel, queue: str) -> int | None:
    """How many messages are ready in a queue of the broker's; None when it is not there."""
    try:
        return int(channel.ask("queue_declare", queue=queue, passive=True).message_count)
    except Refusal as refusal:
        if refusal.code == NOT_FOUND:
            return None
        raise translated(refusal) from None


def _compare_queue(channel: Channel, name: str, arguments: Mapping[str, Any], *, passive: bool) -> None:
    """A declaration of what is there changes nothing: it is how one asks whether it is the same."""
    if count(channel, name) is None:
        if passive:
            raise TopologyMismatch(f"queue {name!r}: expected it to be declared, and it is not there")
        return
    try:
        channel.ask("queue_declare", queue=name, durable=True, arguments=dict(arguments))
    except Refusal as refusal:
        _judge(refusal, name, passive=passive)


def _compare_exchange(channel: Channel, exchange: Exchange, *, passive: bool) -> None:
    try:
        channel.ask("exchange_declare", exchange=exchange.name, exchange_type=exchange.type, passive=True)
        channel.ask("exchange_declare", exchange=exchange.name, exchange_type=exchange.type, durable=True)
    except Refusal as refusal:
        if refusal.code != NOT_FOUND:
            _judge(refusal, exchange.name, passive=passive)
        elif passive:
            raise TopologyMismatch(f"exchange {exchange.name!r}: expected it to be declared, and it is not there") from None


def _judge(refusal: Refusal, name: str, *, passive: bool) -> None:
    """Who may only look, and not declare, is told no more than that it is there."""
    if refusal.code in {PRECONDITION_FAILED, LOCKED}:
        raise mismatch(name, refusal) from None
    if not (passive and refusal.code == ACCESS_REFUSED):
        raise translated(refusal) from None


def _compare_order(channel: Channel, carrier: Carrier) -> None:
    """An ordered queue and one without order have different names on the broker: only together do they tell."""
    there = count(channel, carrier.queues[0]) is not None
    if not there and count(channel, carrier.name if carrier.partitions else carrier.partition(0)) is not None:
        raise _other_order(carrier)
    if there and carrier.partitions and (actual := _partitions(channel, carrier.name)) != carrier.partitions:
        raise TopologyMismatch(f"queue {carrier.name!r}: expected partitions {carrier.partitions}, but it is there with partitions {actual}")


def _other_order(carrier: Carrier) -> TopologyMismatch:
    ordered = bool(carrier.partitions)
    return TopologyMismatch(f"queue {carrier.name!r}: expected ordered {ordered}, but it is there with ordered {not ordered}")


def _partitions(channel: Channel, name: str) -> int:
    """Into how many partitions an ordered queue is split; 0 when there is none of this name."""
    carrier = Carrier(name=name, dead_letter="")
    return next((number for number in range(LANES) if count(channel, carrier.partition(number)) is None), LANES)


def _found(channel: Channel, name: str, partitions: int) -> Carrier:
    """A carrier that another process has declared; or a foreign queue, where there is one of ours for its retries."""
    dead_letter, retries = _dead_letter(channel, name, partitions), ""
    if not (dead_letter or partitions) and count(channel, retries_of(name)) is not None:
        retries = retries_of(name)
        theirs = _dead_letter(channel, retries, 0)  # a name of its own choice, or that of the default
        dead_letter = None if theirs == f"{retries}.dlq" else theirs
    return Carrier(name=name, partitions=partitions, dead_letter=dead_letter or f"{name}.dlq", retries=retries)


def _dead_letter(channel: Channel, name: str, partitions: int) -> str | None:
    """What a queue was declared with can't be asked; but a declaration that differs is refused with the value that is there."""
    queue = Carrier(name=name, partitions=partitions, dead_letter="").queues[0]
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "?"}
    try:
        channel.ask("queue_declare", queue=queue, durable=True, arguments=arguments)
    except Refusal as refusal:
        return actual_value("x-dead-letter-routing-key", refusal)
    channel.ask("queue_delete", queue=queue)  # it was deleted a moment ago, and so we have made it
    raise _undeclared(name)


def _undeclared(name: str) -> ConfigurationError:
    return ConfigurationError(f"queue {name!r} is not declared: declare it with ensure() first")


def _make(channel: Channel, plan: Layout) -> None:
    name = ""
    try:
        for exchange in plan.exchanges:
            name = exchange.name
            channel.ask("exchange_declare", exchange=name, exchange_type=exchange.type, durable=True)
        for name, arguments in plan.queues.items():
            channel.ask("queue_declare", queue=name, durable=True, arguments=dict(arguments))
        _bind(channel, plan)
    except Refusal as refusal:  # somebody else was quicker, or it was not compared
        _judge(refusal, name, passive=False)


def _bind(channel: Channel, plan: Layout) -> None:
    """All but the last without waiting: an ordered queue has many."""
    *others, last = plan.bindings
    for binding in others:
        channel.tell(partial(_bind_one, binding))
    channel.ask("queue_bind", queue=last.destination, exchange=last.source, routing_key=last.key)


def _bind_one(binding: Binding, raw: PikaChannel) -> None:
    if binding.to_exchange:
        raw.exchange_bind(binding.destination, binding.source, binding.key)
    else:
        raw.queue_bind(binding.destination, binding.source, binding.key)
