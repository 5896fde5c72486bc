"""The adapter of `kafka:`."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from typing import TYPE_CHECKING

from postroom.adapters.declaring import require_consistent
from postroom.adapters.errors import Closed, ConfigurationError, TopologyMismatch, Unavailable
from postroom.adapters.seam import Capabilities, Outcome, Verdict
from postroom.adapters.urls import PROCESS
from postroom.adapters.weights import Turns

from . import config
from .classic import ClassicFeed
from .consumer import KafkaConsumer
from .depth import waiting
from .desk import Desk
from .entry import Source
from .faults import undeclared
from .index import Index
from .letters import Graveyard, letter_of
from .options import SHARE, parse
from .publisher import Publisher
from .reach import Reach, quieten
from .reader import Reader
from .registry import Registry
from .share import ShareFeed
from .share_group import compare_group, configure_group
from .share_state import ShareState
from .topology import Topology
from .transactions import Transactions
from .wire import record_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from postroom.adapters.seam import Adapter, Consumer, DeadLetters, Hold, Message, Queue

    from .entry import Entry
    from .keeper import Keeper
    from .options import Options
    from .registry import Declared
    from .wire import Record

__all__ = ["KafkaAdapter", "open_kafka"]

_log = logging.getLogger("postroom.kafka")

MEMBER = "group.instance.id"
JOIN = 10.0
"""How long (seconds) consume() waits for the group to give this member its part; then `receive` tells that it has not."""
FLUSH = 5.0


def open_kafka(url: str, options: Mapping[str, object]) -> Adapter:
    """An adapter for this URL, and options beside it; see `options`. Asks no server. Raises ConfigurationError."""
    quieten()
    return KafkaAdapter(parse(url, options))


class KafkaAdapter:
    """Queues as topics of a Kafka cluster. See `postroom.adapters.seam.Adapter`.

    Each method waits for a silent cluster up to about 15 s; publish() for the reports of a batch up to `message.timeout.ms` and 5 s more.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        config.check(options)
        self.capabilities = _capabilities(self._options)
        self._publisher = Publisher(config.producer_config(self._options))
        reach = Reach(config.admin_config(self._options), self._options.servers)
        self._admin = reach.admin
        self._reader = Reader(config.reader_config(self._options), reach.require)
        self._registry = Registry(self._reader, self._publisher)
        self._topology = Topology(reach, self._registry, self._options)
        self._share_state = ShareState(self._reader) if self._options.mode == SHARE else None
        self._indexes: defaultdict[str, Index] = defaultdict(Index)
        self._transactions = Transactions(config.producer_config(self._options))
        self._consumers: list[KafkaConsumer] = []
        self._lock = threading.Lock()
        self._closed = False

    def ensure(self, queues: Sequence[Queue], *, passive: bool = False) -> None:
        """Declare; see `Adapter.ensure`."""
        self._require_open()
        require_consistent(queues)
        if not self.capabilities.ordered and (ordered := [queue.name for queue in queues if queue.ordered]):
            raise TopologyMismatch(f"queue {ordered[0]!r}: expected ordered True, but a share group keeps no order: use mode=classic")
        self._topology.ensure(queues, passive=passive)

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Publish all at once and wait for each report; see `Adapter.publish`."""
        self._require_open()
        if any(message.delay for message in messages):
            raise ConfigurationError("this backend can't hold a job back (no native_delay): publish it when it is due")
        if not messages:
            return []
        try:
            routes = self._registry.routes({message.queue for message in messages})
        except Unavailable as error:
            return [_unknown(error)] * len(messages)
        return self._publisher.send([_record(message, routes) for message in messages])

    def prepare(self, queues: Collection[str], *, group: str, passive: bool = False) -> Mapping[str, Hold]:
        """Configure the share groups; see `Adapter.prepare`. A classic group needs nothing, and holds a record for as long as it lives."""
        self._require_open()
        found: dict[str, Hold] = {}
        limits_of = compare_group if passive else configure_group
        if self._options.mode == SHARE:
            for name, sources in self._by_group(self._registry.require(queues).values(), group).items():
                hold = limits_of(self._admin.get(), name, self._lease(sources)).explained(name)
                found |= {source.carrier: hold for source in sources.values()}
        return found

    def consume(self, queues: Mapping[str, int], *, group: str, prefetch: int, name: str) -> Consumer:
        """Subscribe; see `Adapter.consume`. Waits up to 10 s for the group to give this member its part."""
        self._require_open()
        if not queues or prefetch < 1 or not name:
            raise ConfigurationError("consume: give queues, a prefetch of 1 or more and a name")
        turns = Turns(queues)
        carriers = self._registry.require(queues)
        self._topology.require(carriers.values())
        for carrier in carriers.values():
            self._note(carrier, group)
        desk = Desk(carriers, turns, prefetch)
        keepers = [self._keeper(mine, desk, prefetch) for mine in self._by_group(carriers.values(), group).values()]
        consumer = KafkaConsumer(desk, keepers, self._bury, topics={carrier.topic for carrier in carriers.values()})
        with self._lock:
            others = [other for other in self._consumers if not other.closed]
            self._require_alone(consumer, others)
            self._consumers = [*others, consumer]
        _start(keepers)
        return consumer

    def dead_letters(self, queue: str) -> DeadLetters:
        """The dead letters of one carrier; see `DeadLetters`. Raises ConfigurationError when it is not declared."""
        self._require_open()
        return self._graveyard(self._registry.require([queue])[queue])

    def abandon(self, name: str) -> int:  # noqa: ARG002 - the group's session timeout, or the share lock, hands its jobs on
        """Nothing to hand back: no client may speak for another member of its group."""
        self._require_open()
        return 0

    def carriers(self) -> Sequence[str]:
        """All that were ever declared, by anyone."""
        self._require_open()
        return sorted(self._registry.all())

    def depth(self, queue: str) -> Mapping[str, int]:
        """Count by status. `running` is what this adapter holds: what others hold counts as pending."""
        self._require_open()
        carrier = self._registry.find([queue]).get(queue)
        if carrier is None:
            return {"pending": 0, "running": 0, "failed": 0}
        running = sum(consumer.running(queue) for consumer in self._consumers)
        groups = [self._group_id(group) for group in self._registry.all()[queue].readers]
        pending = waiting(self._admin.get(), carrier.topic, groups, self._share_state) - running
        return {"pending": max(0, pending), "running": running, "failed": self._graveyard(carrier).count()}

    def tidy(self, *, older_than: float, limit: int = 1000) -> int:  # noqa: ARG002 - the seam's
        """Nothing to remove: retention is the topic's."""
        return 0

    def close(self) -> None:
        """Leave all groups, wait a moment for reports that are out, end the clients. May be called twice."""
        self._closed = True
        for consumer in self._consumers:
            consumer.close()
        if unknown := self._publisher.close(FLUSH):
            _log.warning("%d records had no report when the adapter was closed: it is unknown whether they arrived", unknown)
        self._transactions.close()
        self._reader.close()
        self._admin.drop()  # it ends with the call that uses it, if one does

    def _note(self, carrier: Declared, group: str) -> None:
        try:
            self._registry.note(carrier, group)
        except Unavailable as error:  # it may not write there: then depth() can't tell what the group has done
            _log.warning("queue %s: group %s is not noted: %s", carrier.name, group, error)

    def _keeper(self, sources: Mapping[str, Source], desk: Desk, prefetch: int) -> Keeper:
        group = next(iter(sources.values())).group
        if self._options.mode == SHARE:
            limits = configure_group(self._admin.get(), group, self._lease(sources))
            settings = config.share_config(self._options, group, prefetch)
            reachable, identify = self._topology.is_reachable, self._topology.identify
            return ShareFeed(settings, sources, desk, self._publisher, limits=limits, reachable=reachable, identify=identify).keeper
        settings = config.consumer_config(self._options, group)
        most, skip_backlog, identify = max(4 * prefetch, 100), self._options.skip_backlog, self._topology.identify
        return ClassicFeed(settings, sources, desk, most=most, skip_backlog=skip_backlog, identify=identify).keeper

    def _group_id(self, group: str) -> str:
        """Its name for the cluster, where a share group and a classic one can't share a name: so a service may move from one to the other."""
        return f"{group}.share" if self._options.mode == SHARE else group

    def _by_group(self, carriers: Iterable[Declared], asked: str) -> Mapping[str, Mapping[str, Source]]:
        """For each consumer group the topics that it reads."""
        groups: defaultdict[str, dict[str, Source]] = defaultdict(dict)
        for carrier in carriers:
            source = _source(carrier, self._group_id(carrier.group or asked))
            groups[source.group][source.topic] = source
        return groups

    def _lease(self, sources: Mapping[str, Source]) -> float:
        carriers = self._registry.all()
        return max(carriers[source.carrier].lease for source in sources.values())

    def _bury(self, entry: Entry, reason: str) -> None:
        (outcome,) = self._publisher.send([letter_of(entry, reason)])
        if outcome.verdict is not Verdict.CONFIRMED:
            raise Unavailable(f"{entry.place.source.dead_letter}: the dead letter is not confirmed: {outcome.reason}")

    def _graveyard(self, carrier: Declared) -> Graveyard:
        return Graveyard(carrier, self._indexes[carrier.dead_letter], self._reader, self._admin.get(), self._transactions)

    def _require_alone(self, consumer: KafkaConsumer, others: Iterable[KafkaConsumer]) -> None:
        member = self._options.client.get(MEMBER)
        if member and (shared := [group for other in others for group in other.groups & consumer.groups]):
            raise ConfigurationError(f"{MEMBER}={member}: names one member, and this adapter has a consumer in group {shared[0]!r} already")

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("this adapter is closed")


def _capabilities(options: Options) -> Capabilities:
    share, member = options.mode == SHARE, options.client.get(MEMBER, PROCESS)
    return Capabilities(
        name=f"kafka ({'share' if share else 'classic'})",
        durable=True,
        shared=True,
        native_delay=False,
        atomic_publish=False,
        clock_leases=False,
        counts_attempts=False,  # a share group counts deliveries, also those that were handed back: a hint at most
        fifo=options.partitions == 1 and not share,
        ordered=not share,
        competing=False,
        rolling=not share,
        single="" if PROCESS in member else f"{MEMBER}={member}",
    )


def _source(carrier: Declared, group: str) -> Source:
    return Source(
        carrier=carrier.name,
        topic=carrier.topic,
        group=group,
        only=carrier.group,
        queue=carrier.topic,
        ordered=carrier.ordered,
        dead_letter=carrier.dead_letter,
        retries=carrier.retries,
    )


def _start(keepers: Iterable[Keeper]) -> None:
    for keeper in keepers:
        keeper.start()
    for keeper in keepers:
        keeper.joined.wait(JOIN)


def _record(message: Message, routes: Mapping[str, tuple[str, str | None]]) -> Record | Outcome:
    if message.queue not in routes:
        return undeclared(message.queue)
    topic, group = routes[message.queue]
    try:
        return record_of(message, topic, group)
    except (KeyError, TypeError, ValueError) as error:
        return Outcome(Verdict.REFUSED, f"it can't be sent: {error}")


def _unknown(error: Unavailable) -> Outcome:
    return Outcome(Verdict.UNKNOWN, str(error))
