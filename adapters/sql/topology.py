"""The queues that were declared, and where a message for a name goes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, insert, or_, select

from postroom.adapters.errors import ConfigurationError, TopologyMismatch

from .tables import queues
from .types import now

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy import Connection

    from postroom.adapters.seam import Queue

__all__ = ["Carrier", "Routes", "carrier_names", "declare", "required", "routes"]

_names: Any = bindparam("names", expanding=True)
_DECLARED = select(queues).where(queues.c.name.in_(_names))
_LEADS_TO = or_(queues.c.name.in_(_names), queues.c.topic.in_(_names))
_ROUTES = select(queues.c.name, queues.c.topic, queues.c.ordered, now().label("clock")).where(_LEADS_TO)
_ALL = select(queues.c.name).order_by(queues.c.name)
_INSERT = insert(queues)


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier:
    """A queue that holds jobs, as it was declared. `topic` is the name its messages are published to, where that is not its own."""

    name: str
    topic: str | None
    ordered: bool
    lease: float
    dead_letter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """Where messages go, at the time `clock` of the database: for each name its carriers, each with whether it is ordered."""

    clock: float
    carriers: Mapping[str, Sequence[tuple[str, bool]]]


def declared(connection: Connection, names: Collection[str]) -> dict[str, Carrier]:
    """Return those of these carriers that are declared."""
    return {row["name"]: Carrier(**row) for row in connection.execute(_DECLARED, {"names": [*names]}).mappings()}


def required(connection: Connection, names: Collection[str]) -> dict[str, Carrier]:
    """Return these carriers; raise ConfigurationError when one is not declared."""
    found = declared(connection, names)
    if missing := sorted(set(names) - set(found)):
        raise ConfigurationError(f"queue {missing[0]!r} is not declared: declare it with ensure() first")
    return found


def carrier_names(connection: Connection) -> list[str]:
    """All that are declared."""
    return [*connection.scalars(_ALL)]


def routes(connection: Connection, names: Collection[str]) -> Routes:
    """Where a message for each of these names goes, now: a topic may gain groups at any time."""
    carriers: defaultdict[str, list[tuple[str, bool]]] = defaultdict(list)
    clock = 0.0
    for row in connection.execute(_ROUTES, {"names": [*names]}):
        carriers[row.name].append((row.name, row.ordered))
        if row.topic is not None:
            carriers[row.topic].append((row.name, row.ordered))
        clock = row.clock
    return Routes(clock=clock, carriers=carriers)


def declare(connection: Connection, wanted: Sequence[Queue], *, passive: bool) -> None:
    """Compare all, then insert what is missing. A topic may gain groups, and a queue priorities."""
    expected = [carrier for queue in wanted for carrier in _carriers(queue)]
    there = declared(connection, [carrier.name for carrier in expected])
    for carrier in expected:
        _compare(carrier, there.get(carrier.name), passive=passive)
    if missing := {carrier.name: asdict(carrier) for carrier in expected if carrier.name not in there}:
        connection.execute(_INSERT, [*missing.values()])


def _carriers(queue: Queue) -> list[Carrier]:
    return [
        Carrier(
            name=name,
            topic=queue.name if queue.group_of(name) else None,
            ordered=queue.ordered,
            lease=queue.lease,
            dead_letter=queue.dead_letter_of(name),
        )
        for name in queue.carriers
    ]


def _compare(expected: Carrier, actual: Carrier | None, *, passive: bool) -> None:
    if actual is None and passive:
        raise TopologyMismatch(f"queue {expected.name!r}: expected it to be declared, and it is not there")
    for argument in ("topic", "ordered", "lease", "dead_letter") if actual is not None else ():
        ours, theirs = getattr(expected, argument), getattr(actual, argument)
        if ours != theirs:
            raise TopologyMismatch(f"queue {expected.name!r}: expected {argument} {ours!r}, but it is there with {argument} {theirs!r}")
