"""Settling a batch: one fenced UPDATE for each take it came from, and a careful second try only when some of it is lost."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, cast

from .transaction import transact

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Connection, Engine, Update

    from postroom.adapters.seam import Delivery

    from .statements import Statements

__all__ = ["Receipt", "settle"]


class Receipt(NamedTuple):
    """The token of a delivery: the row, and the take that returned it."""

    seq: int
    token: str


class _SomeAreLostError(Exception):
    """Fewer rows than receipts: roll back, and find out which."""


_Groups = dict[str, dict[int, "Delivery"]]


def settle(
    engine: Engine, statements: Statements, transition: Update, deliveries: Iterable[Delivery], values: Mapping[str, object]
) -> Sequence[Delivery]:
    """Do `transition` to all of these that their receipts still hold, in one transaction; return the others, which are not touched."""
    groups = _by_take(deliveries)

    def at_once(connection: Connection) -> None:
        for token, group in groups.items():
            if connection.execute(transition, {**values, "receipt": token, "seqs": [*group]}).rowcount != len(group):
                raise _SomeAreLostError

    def carefully(connection: Connection) -> list[Delivery]:
        lost = []
        for token, group in groups.items():
            held = [*connection.scalars(statements.held, {"receipt": token, "seqs": [*group]})]
            if held:
                connection.execute(transition, {**values, "receipt": token, "seqs": held})
            lost += [group[seq] for seq in group.keys() - set(held)]
        return lost

    try:
        transact(engine, at_once)
    except _SomeAreLostError:
        return transact(engine, carefully)
    return ()


def _by_take(deliveries: Iterable[Delivery]) -> _Groups:
    groups: _Groups = defaultdict(dict)
    for delivery in deliveries:
        seq, token = cast("Receipt", delivery.token)
        groups[token][seq] = delivery
    return groups
