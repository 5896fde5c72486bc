"""From the broker's answers to the rows' new states: one short transaction, fenced by the lanes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Double, Text, bindparam, case, func, null, or_, select, update

from postroom.adapters.seam import Verdict
from postroom.adapters.sql.transaction import transact
from postroom.adapters.sql.types import constant, now
from postroom.adapters.text import bounded

from .due import among
from .tables import lanes, outbox

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Connection, Engine, Update

    from postroom.adapters.seam import Outcome

    from .claim import Answer, Due
    from .lanes import Tenure
    from .options import RelayOptions

__all__ = ["Mark", "RoundResult", "settle"]

MAX_REASON = 2000
"""How much of the broker's reason (bytes) is kept in the row."""


class Mark(Enum):
    """What an answer makes of a row."""

    SENT = "sent"
    """Confirmed. Terminal, and removed after the retention time."""
    PARKED = "parked"
    """Refused for good, or refused for now too often: it waits for an operator. In an ordered queue it holds its key."""
    HELD = "held"
    """Not now: charged an attempt, tried again later, and the rest of its key waits."""
    UNKNOWN = "unknown"
    """No answer: nothing charged, sent again with the same id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What one round did, in rows. `lost`: answers that were not recorded because the row's lane had changed hands; its new holder sends it again.

    `outage` says why the broker gave no answer, if it gave none. `more`: there was more in the line than one batch.
    """

    sent: int = 0
    parked: int = 0
    held: int = 0
    unknown: int = 0
    lost: int = 0
    outage: str = ""
    more: bool = False

    @property
    def worked(self) -> bool:
        """Whether the round changed anything."""
        return self.sent + self.parked + self.held > 0

    def __add__(self, later: RoundResult) -> RoundResult:
        """Both together; the later one says whether there is an outage, and more to do."""
        return RoundResult(
            sent=self.sent + later.sent,
            parked=self.parked + later.parked,
            held=self.held + later.held,
            unknown=self.unknown + later.unknown,
            lost=self.lost + later.lost,
            outage=later.outage,
            more=later.more,
        )


_Group: TypeAlias = tuple[Mark, str, int]
"""Rows that get the same mark, reason and number of earlier attempts are marked by one statement."""

# Written so that no index fits it: by old statistics the one of pending rows looks tiny, and would be searched whole instead of the primary key.
_PENDING = func.lower(outbox.c.status) == constant("pending")
_HELD = (lanes.c.relay == bindparam("me"), lanes.c.token <= bindparam("fence"))
_ALL_ARE_HELD = select(func.count()).select_from(lanes).where(*_HELD).scalar_subquery() == bindparam("lanes")
_IS_HELD = select(lanes.c.lane).where(lanes.c.lane == outbox.c.lane, *_HELD).scalar_subquery().is_not(None)
_FENCE = or_(_ALL_ARE_HELD, _IS_HELD)  # nearly always the first, which is asked once and not for each row
_REASON = bindparam("reason", type_=Text)
_FAILED = {"attempts": outbox.c.attempts + 1, "last_error": _REASON}
_VALUES: Mapping[Mark, dict[str, Any]] = {
    Mark.SENT: {"status": "sent", "sent_at": now(), "retry_at": None, "holds": None},
    Mark.PARKED: {**_FAILED, "status": "parked", "retry_at": None, "holds": case((outbox.c.ordered, outbox.c.ordering_key), else_=null())},
    Mark.HELD: {**_FAILED, "retry_at": now() + bindparam("delay", type_=Double), "holds": outbox.c.ordering_key},
    Mark.UNKNOWN: {"last_error": _REASON},
}


def _statements(dialect: str) -> Mapping[Mark, Update]:
    fenced = update(outbox).where(among(outbox.c.seq, "seqs", dialect), _PENDING, _FENCE)
    # A long outage has much to say, and always the same: write it down once.
    news = or_(outbox.c.last_error.is_(None), outbox.c.last_error != _REASON)
    return {mark: (fenced.where(news) if mark is Mark.UNKNOWN else fenced).values(values) for mark, values in _VALUES.items()}


_UPDATES = {dialect: _statements(dialect) for dialect in ("postgresql", "other")}


def settle(engine: Engine, tenure: Tenure, answers: Sequence[Answer], options: RelayOptions, rng: random.Random) -> RoundResult:
    """Record the answers to rows that were sent under `tenure`, all in one transaction; return the counts. Raises Unavailable: nothing recorded."""
    groups = _grouped(answers, options)
    values = {group: _values(group, options, rng) for group in groups}
    changed = transact(engine, lambda connection: _mark(connection, tenure, groups, values))
    sent, parked, held = (sum(changed[group] for group in groups if group[0] is mark) for mark in (Mark.SENT, Mark.PARKED, Mark.HELD))
    unknown = sum(len(seqs) for group, seqs in groups.items() if group[0] is Mark.UNKNOWN)
    lost = len(answers) - unknown - sent - parked - held
    outage = next((reason for mark, reason, _ in groups if mark is Mark.UNKNOWN), "")
    return RoundResult(sent=sent, parked=parked, held=held, unknown=unknown, lost=lost, outage=outage)


def _grouped(answers: Iterable[Answer], options: RelayOptions) -> dict[_Group, list[int]]:
    groups: defaultdict[_Group, list[int]] = defaultdict(list)
    for row, outcome in answers:
        groups[_group(row, outcome, options)].append(row.seq)
    return groups


def _group(row: Due, outcome: Outcome, options: RelayOptions) -> _Group:
    if outcome.verdict is Verdict.CONFIRMED:
        return Mark.SENT, "", 0
    reason = bounded(outcome.reason or "the broker gave no reason", MAX_REASON)
    match outcome.verdict:
        case Verdict.UNKNOWN:
            return Mark.UNKNOWN, reason, 0
        case Verdict.BUSY if row.attempts + 1 < options.max_attempts:
            return Mark.HELD, reason, row.attempts
        case _:
            return Mark.PARKED, reason, row.attempts


def _values(group: _Group, options: RelayOptions, rng: random.Random) -> dict[str, Any]:
    mark, reason, attempts = group
    match mark:
        case Mark.SENT:
            return {}
        case Mark.HELD:
            return {"reason": reason, "delay": options.backoff.delay(attempts + 1, rng)}
        case _:
            return {"reason": reason}


def _mark(connection: Connection, tenure: Tenure, groups: Mapping[_Group, list[int]], values: Mapping[_Group, dict[str, Any]]) -> dict[_Group, int]:
    updates = _UPDATES.get(connection.dialect.name, _UPDATES["other"])
    fence = {"me": tenure.relay, "fence": tenure.fence, "lanes": len(tenure.lanes)}
    return {group: connection.execute(updates[group[0]], {**fence, **values[group], "seqs": sorted(seqs)}).rowcount for group, seqs in groups.items()}
