"""What is declared, as all processes see it: one small compacted topic, a record for each carrier.

A topic of Kafka has no room for what a queue is (ordered, its dead letters, its groups), and a worker must know it before it reads the first job.
"""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING

from postroom.adapters.errors import ConfigurationError, Unavailable
from postroom.adapters.seam import Verdict
from postroom.adapters.text import bounded

from .wire import Record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from postroom.adapters.seam import Queue

    from .publisher import Publisher
    from .reader import Reader

__all__ = ["TOPIC", "Declared", "Registry", "declared_by"]

_log = logging.getLogger("postroom.kafka")

TOPIC = "postroom.queues"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A carrier as it was declared: a topic, or with `group` set one group of a topic. `groups` have consumed it, where it is a topic.

    `retries` names the topic beside a foreign one, where what is ours goes: the foreign one is never written to.
    """

    name: str
    topic: str
    group: str | None
    ordered: bool
    lease: float
    dead_letter: str
    groups: tuple[str, ...] = ()
    retries: str = ""

    @property
    def readers(self) -> tuple[str, ...]:
        """The groups that read it."""
        return (self.group,) if self.group else self.groups


_FIELDS = frozenset(field.name for field in fields(Declared))


class Registry:
    """Thread-safe. What is asked for and not known is looked up again, so nothing that anyone has declared is missed."""

    def __init__(self, reader: Reader, publisher: Publisher) -> None:
        self._reader = reader
        self._publisher = publisher
        self._lock = threading.Lock()
        self._carriers: dict[str, Declared] = {}
        self._routes: dict[str, tuple[str, str | None]] = {}
        self._next = 0

    def all(self) -> Mapping[str, Declared]:
        """Every carrier, read up to now."""
        self._read_on()
        return self._carriers

    def find(self, names: Collection[str]) -> Mapping[str, Declared]:
        """Those of these carriers that are declared."""
        if any(name not in self._carriers for name in names):
            self._read_on()
        return {name: self._carriers[name] for name in names if name in self._carriers}

    def require(self, names: Collection[str]) -> Mapping[str, Declared]:
        """These carriers; raises ConfigurationError when one is not declared."""
        found = self.find(names)
        if missing := sorted(set(names) - set(found)):
            raise ConfigurationError(f"queue {missing[0]!r} is not declared: declare it with ensure() first")
        return found

    def routes(self, names: Collection[str]) -> Mapping[str, tuple[str, str | None]]:
        """For each name that leads somewhere, the topic, and the only group of it that is meant."""
        if any(name not in self._routes for name in names):
            self._read_on()
        return self._routes

    def put(self, carriers: Iterable[Declared]) -> None:
        """Declare these. Raises Unavailable unless all are confirmed."""
        carriers = list(carriers)
        records = [Record(TOPIC, TOPIC, carrier.name.encode(), _packed(carrier), []) for carrier in carriers]
        for outcome in self._publisher.send(records):
            if outcome.verdict is not Verdict.CONFIRMED:
                raise Unavailable(f"{TOPIC}: {outcome.reason}")
        with self._lock:
            self._learn(carriers)

    def note(self, carrier: Declared, group: str) -> None:
        """Remember that this group consumes it: its depth is counted from there."""
        if group in carrier.groups or carrier.group is not None:
            return
        newest = self.all().get(carrier.name, carrier)  # another one's may have been noted meanwhile
        if group not in newest.groups:
            self.put([replace(newest, groups=(*newest.groups, group))])

    def _read_on(self) -> None:
        with self._lock:
            for record in self._reader.read(TOPIC, self._next):
                self._next = (record.offset() or 0) + 1
                if (packed := record.value()) is not None and (carrier := _unpacked(packed)) is not None:
                    self._learn([carrier])

    def _learn(self, carriers: Sequence[Declared]) -> None:
        for carrier in carriers:
            self._carriers[carrier.name] = carrier
            if not carrier.retries:
                self._routes[carrier.name] = carrier.topic, carrier.group
                self._routes.setdefault(carrier.topic, (carrier.topic, None))


def declared_by(queue: Queue) -> list[Declared]:
    """The carriers of a queue."""
    return [
        Declared(
            name=name,
            topic=queue.name if queue.group_of(name) else name,
            group=queue.group_of(name),
            ordered=queue.ordered,
            lease=queue.lease,
            dead_letter=queue.dead_letter_of(name),
            retries=queue.back_to(name) if name in queue.foreign_carriers else "",
        )
        for name in queue.carriers
    ]


def _packed(carrier: Declared) -> bytes:
    return json.dumps({"version": 1, **asdict(carrier)}, separators=(",", ":")).encode()


def _unpacked(packed: bytes) -> Declared | None:
    """A carrier, as far as this version knows it; None for what is none: one bad record must not stop all that read the topic."""
    try:
        found = json.loads(packed)
        return Declared(**{**{name: found[name] for name in _FIELDS & found.keys()}, "groups": tuple(found["groups"])})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        _log.warning("%s: a record that is no queue is passed over: %s", TOPIC, bounded(repr(packed)))
        return None
