"""Messages that were sent and of which the ledger knows no outcome: they wait on the broker, or it has lost them.

A message is *outstanding* in a carrier when it is the latest of its job there, and its job has neither begun nor ended in that carrier's group, or
its latest attempt is over by all signs and nobody has come back for the next. Dead letters are not: they were delivered.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import BigInteger, Boolean, Double, Integer, bindparam, func, literal_column, or_, select

from postroom.adapters.errors import ConfigurationError
from postroom.adapters.seam import retries_of
from postroom.adapters.sql.engine import reading
from postroom.adapters.sql.transaction import transact
from postroom.adapters.sql.types import constant
from postroom.outbox.envelope import fingerprint
from postroom.outbox.rows import MESSAGE, message_of, stamp_of
from postroom.outbox.tables import outbox

from .dead import DISCARDED, QueuePlace, behind
from .entries import COLUMNS
from .ledger.entry import Entry
from .ledger.tables import ledger

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import Connection, Engine, Row, Select

    from postroom.adapters.seam import Adapter

    from .jobs import Jobs

__all__ = ["Groups", "Outstanding", "Search", "Span", "Target", "groups_of"]

PAGE = 500

_LATER = outbox.alias("later")
_LATER_ONE = (
    select(_LATER.c.seq).where(_LATER.c.id == outbox.c.id, _LATER.c.queue == outbox.c.queue, _LATER.c.seq > outbox.c.seq).limit(literal_column("1"))
)
for _dialect in ("mysql", "mariadb"):  # by old statistics it would rather read the whole table, for each row
    _LATER_ONE = _LATER_ONE.with_hint(_LATER, "FORCE INDEX (ix_postroom_outbox_id)", _dialect)
_IS_LATEST = func.coalesce(_LATER_ONE.scalar_subquery(), 0) < 1
"""One look into an index for each row, which no planner turns into a join of all with all."""
_ITS_OWN = (ledger.c.key == outbox.c.key, ledger.c.type == outbox.c.type, ledger.c.job_id == outbox.c.id)
_ENDED = select(func.count()).select_from(ledger).where(*_ITS_OWN, ledger.c.status.in_([constant("done"), constant("failed")])).scalar_subquery()
_IS_SPLIT = outbox.c.queue.in_(bindparam("split", expanding=True)) == bindparam("is_split", type_=Boolean)
_AT, _SEQ = bindparam("at", type_=Double), bindparam("seq", type_=BigInteger)
_NAMES = ("seq", "id", "queue", "type", "key", "ordering_key", "ordered", "headers", "sent_at", "last_error")
_PAGE = (
    select(*(outbox.c[name] for name in _NAMES))
    .where(outbox.c.status == constant("sent"), outbox.c.sent_at >= _AT, or_(outbox.c.sent_at > _AT, outbox.c.seq > _SEQ))
    .where(outbox.c.sent_at <= bindparam("last", type_=Double))
    .where(_IS_SPLIT, _IS_LATEST, bindparam("parts", type_=Integer) > _ENDED)
    .order_by(outbox.c.sent_at, outbox.c.seq)
    .limit(bindparam("limit", type_=Integer))
)
"""The ledger is asked by its key for each row: most have ended, and go no further than this statement."""
_ENTRIES = select(*COLUMNS).where(ledger.c.key.in_(bindparam("keys", expanding=True)))
_MESSAGES: Select[Any] = select(outbox.c.seq, *MESSAGE).where(outbox.c.seq.in_(bindparam("seqs", expanding=True)))
_SERVED = select(ledger.c.queue, ledger.c.group_name).distinct()


class Target(NamedTuple):
    """Where a message must be taken from: a carrier; and for which group of a topic, if it is one's."""

    carrier: str
    group: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """By the database's clock: the rows looked at are those sent from `first` to `last`. What was left alone since `quiet` is overdue."""

    first: float
    quiet: float
    last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outstanding:
    """A sent row, and the carriers in which it is outstanding.

    `alive` is the replay and the copy that the ledger waits for, if that is a later message of the job; `packed` are the row's headers then.
    """

    seq: int
    id: str
    type: str
    queue: str
    ordering_key: str
    ordered: bool
    carriers: Sequence[str]
    is_overdue: bool
    alive: tuple[int, int] | None = None
    packed: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Which groups each topic has, and which serve each carrier, as far as that is known."""

    topics: Mapping[str, Collection[str]]
    serving: Mapping[str, Collection[str]]

    def targets(self, queue: str) -> Sequence[Target]:
        """Where the messages that are sent to `queue` must be taken from."""
        if queue in self.topics:
            return [Target(f"{queue}.{group}", group) for group in sorted(self.topics[queue])]
        topic, _, group = queue.rpartition(".")
        return [Target(queue, group if group in self.topics.get(topic, ()) else None)]

    @property
    def split(self) -> Sequence[str]:
        """The topics, and their carriers."""
        return [*self.topics, *(f"{topic}.{group}" for topic, groups in self.topics.items() for group in groups)]

    def entry_for(self, queue: str, target: Target, entries: Iterable[Entry]) -> Entry | None:
        """The ledger's row that decides about a message for this target: its group's; of a plain queue, that of who serves it."""
        groups = {target.group} if target.group is not None else self.serving.get(queue)
        plain = (entry for entry in entries if target.group is not None or not entry.queue.endswith(f".{entry.group_name}"))
        return next((entry for entry in plain if groups is None or entry.group_name in groups), None)


def groups_of(engine: Engine, jobs: Jobs | None) -> Groups:
    """Those that `jobs` declare, and those in which the ledger knows any job. Reads the whole ledger once: some seconds for millions."""
    topics: defaultdict[str, set[str]] = defaultdict(set)
    serving: defaultdict[str, set[str]] = defaultdict(set)
    for queue in jobs.queues.values() if jobs else ():
        topics.update({queue.name: set(queue.groups)} if queue.groups else {})
    for carrier, group in transact(reading(engine), lambda connection: connection.execute(_SERVED).all()):
        if carrier.endswith(f".{group}"):
            topics[carrier.removesuffix(f".{group}")].add(group)
        for name in (carrier, retries_of(carrier)):
            serving[name].add(group)
    return Groups(topics=topics, serving=serving)


class Search:
    """One look through the sent rows, oldest first, in pages. Read only; each page is a transaction of its own."""

    def __init__(self, engine: Engine, adapter: Adapter, groups: Groups, span: Span) -> None:
        self._engine = reading(engine)
        self._adapter = adapter
        self._groups = groups
        self._span = span
        self._dead: dict[str, Collection[str]] = {}

    def rows(self) -> Iterator[Outstanding]:
        """All that are outstanding. Raises Unavailable when database or broker can't be reached."""
        split = self._groups.split
        yield from self._of({"split": split, "is_split": False, "parts": 1})
        if split:
            yield from self._of({"split": split, "is_split": True, "parts": max(map(len, self._groups.topics.values()))})

    def _of(self, which: Mapping[str, Any]) -> Iterator[Outstanding]:
        values = {**which, "at": self._span.first, "seq": 0, "last": self._span.last, "limit": PAGE}
        while page := transact(self._engine, partial(_read, values=values)):
            for row, entries, ours in page:
                if found := self._judge(row, entries, ours):
                    yield found
            values |= {"at": page[-1][0].sent_at, "seq": page[-1][0].seq}

    def _judge(self, row: Row[Any], entries: Sequence[Entry], ours: str) -> Outstanding | None:
        if (row.last_error or "").startswith(DISCARDED):
            return None
        several = row.queue in self._groups.topics
        known = {target.carrier: self._groups.entry_for(row.queue, target, entries) for target in self._groups.targets(row.queue)}
        still_open = [carrier for carrier, entry in known.items() if self._is_open(row, entry, ours, several=several)]
        carriers = [carrier for carrier in still_open if row.id not in self._dead_in(carrier)]
        return _outstanding(row, carriers, known.get(row.queue), self._span.quiet) if carriers else None

    def _is_open(self, row: Row[Any], entry: Entry | None, ours: str, *, several: bool) -> bool:
        """Whether nothing has come of the message, as far as the row of its key tells. `several`: a group's retries are rows of their own."""
        if entry is None:
            return True
        if entry.job_id != row.id:  # a repeat of work that is done was delivered, or needs not be
            return entry.status != "done" or entry.digest != ours
        if entry.status == "pending":
            is_elsewhere = several and (entry.replays, entry.copy) > stamp_of(row.headers)
            return not is_elsewhere and (entry.retry_at or 0.0) < self._span.quiet
        return entry.status == "running" and (entry.lease_until or 0.0) < self._span.quiet

    def _dead_in(self, carrier: str) -> Collection[str]:
        """The ids of the jobs among the dead letters of a carrier, read once."""
        if carrier not in self._dead:
            self._dead[carrier] = frozenset(self._letters(carrier))
        return self._dead[carrier]

    def _letters(self, carrier: str) -> Iterator[str]:
        try:
            dead = self._adapter.dead_letters(carrier)
        except ConfigurationError:  # the broker has no such queue any more
            return
        for letter in behind(QueuePlace(carrier, dead, self._engine)):
            yield letter.envelope.id if letter.envelope else letter.message.id


def _outstanding(row: Row[Any], carriers: Sequence[str], entry: Entry | None, quiet: float) -> Outstanding:
    """A replay takes a dead letter back to the broker without a row of its own: that is the message that the ledger waits for."""
    alive = (entry.replays, entry.copy) if entry and entry.job_id == row.id else (0, 0)
    is_later = alive > stamp_of(row.headers)
    return Outstanding(
        seq=row.seq,
        id=row.id,
        type=row.type,
        queue=row.queue,
        ordering_key=row.ordering_key,
        ordered=row.ordered,
        carriers=carriers,
        is_overdue=row.sent_at <= quiet,
        alive=alive if is_later else None,
        packed=row.headers if is_later else b"",
    )


def _read(connection: Connection, values: Mapping[str, Any]) -> list[tuple[Row[Any], Sequence[Entry], str]]:
    """A page of rows, each with the ledger's rows of its key, and with its payload's fingerprint where that matters."""
    rows = connection.execute(_PAGE, values).all()
    if not rows:
        return []
    entries: defaultdict[tuple[str, str], list[Entry]] = defaultdict(list)
    for found in connection.execute(_ENTRIES, {"keys": list({row.key for row in rows})}).mappings():
        entries[found["type"], found["key"]].append(Entry(**found))
    repeats = [row.seq for row in rows if any(entry.job_id != row.id for entry in entries[row.type, row.key])]
    ours = _fingerprints(connection, repeats)
    return [(row, entries[row.type, row.key], ours.get(row.seq, "")) for row in rows]


def _fingerprints(connection: Connection, seqs: Sequence[int]) -> Mapping[int, str]:
    if not seqs:
        return {}
    messages = ((row.seq, message_of(row)) for row in connection.execute(_MESSAGES, {"seqs": seqs}))
    return {seq: fingerprint(message.body, message.headers) for seq, message in messages}
