"""Every statement of the ledger, built once. Times are the database's; what takes many rows takes them as one recordset.

Each write names the state that it expects (`id`, `fence` and status), so that it is its own fence: a row that has moved on is not touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Double, Text, and_, bindparam, delete, literal, null, select, true, type_coerce, update
from sqlalchemy.dialects import mysql, postgresql, sqlite

from postroom.adapters.sql.types import now
from postroom.outbox.tables import holdups, outbox

from .entry import FREE, Entry
from .recordset import among, recordset
from .tables import ledger

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Select, TableValuedAlias

__all__ = [
    "ADDRESS",
    "COLUMNS",
    "DISCARD",
    "DISCARDED",
    "FINISH",
    "FINISH_LOCKED",
    "FINISH_MANY",
    "FIRST_HOLDUPS",
    "HELD",
    "INSERTED",
    "INSERT_ABSENT",
    "INSERT_EACH",
    "LOCK_BY_ADDRESS",
    "LOCK_BY_ID",
    "LOCK_BY_WORKER",
    "LOCK_HELD",
    "NOW",
    "OLD",
    "PURGE",
    "PUT",
    "PUT_EACH",
    "READ_BY_ADDRESS",
    "RENEW",
    "RETRY",
]

COLUMNS = tuple(Entry.__dataclass_fields__)
"""The columns of the table, which are the fields of an Entry."""

ADDRESS = (ledger.c.key, ledger.c.type, ledger.c.group_name)
"""What makes a row the only one: where a claim looks."""

_CLAIMED = ("key", "type", "group_name", "job_id", "queue", "digest", "max_attempts", "copy", "replays", "enqueued_at", "redeliveries")
_MOVED = tuple(name for name in COLUMNS if name not in {"id", "group_name", "type", "key"})
_IS_RUNNING = ledger.c.status == "running"

_claimed = recordset("rows", *(ledger.c[name] for name in _CLAIMED))
_addressed = recordset("rows", *ADDRESS)
_named = recordset("rows", ledger.c.id)
_held = recordset("rows", ledger.c.id, ledger.c.fence)
_moved = recordset("rows", ledger.c.id, *(ledger.c[name] for name in _MOVED), old_fence=ledger.c.fence, old_status=ledger.c.status)

_begun: dict[str, ColumnElement[Any]] = {
    "status": literal("running"),
    "attempts": literal(0),
    "suspicions": literal(0),
    "fence": bindparam("fence", type_=ledger.c.fence.type),
    "taken_at": now(),
    "lease_until": now() + bindparam("lease", type_=Double),
    "worker": bindparam("worker", type_=ledger.c.worker.type),
}
_all_begun = select(*_claimed.c, *_begun.values()).where(true())  # SQLite needs a WHERE between SELECT and ON CONFLICT
_into = [*_CLAIMED, *_begun]

_found = (ledger.c.id, *(type_coerce(column, Text).label(column.name) for column in ADDRESS))  # plain text, as these databases have it

INSERT_ABSENT = {
    "postgresql": postgresql.insert(ledger).from_select(_into, _all_begun).on_conflict_do_nothing().returning(*_found),
    "sqlite": sqlite.insert(ledger).from_select(_into, _all_begun).on_conflict_do_nothing().returning(*_found),
}
"""Begin every key that has no row yet. Waits for a transaction that is just inserting one of them: the constraint is the check."""
INSERT_EACH = mysql.insert(ledger).values({name: bindparam(name) for name in _into}).on_duplicate_key_update(id=ledger.c.id)
"""The same for MySQL, which would lock the table for INSERT ... SELECT; its driver makes one statement of many plain values."""


def _by_index(found: Select[Any], index: str) -> Select[Any]:
    """Find rows from left to right and by this index, so that MySQL locks those and no others: it would rather read a small table whole."""
    for dialect in ("mysql", "mariadb"):
        found = found.prefix_with("STRAIGHT_JOIN", dialect=dialect).with_hint(ledger, f"FORCE INDEX ({index})", dialect)
    return found


def _of(given: TableValuedAlias, index: str, *columns: ColumnElement[Any]) -> Select[Any]:
    same = and_(*(ledger.c[name] == given.c[name] for name in given.c.keys()))  # noqa: SIM118 - iterating gives columns
    return _by_index(select(*columns).select_from(given).join(ledger, same), index).where(among("rows", ledger.c[given.c.keys()[0]]))


NOW = select(now())

_KEY = "postroom_ledger_key"
_entry = (*(ledger.c[name] for name in COLUMNS), now().label("now"))

INSERTED = _of(_addressed, _KEY, ledger.c.id, *ADDRESS).where(ledger.c.fence == bindparam("fence"))
"""Which rows INSERT_EACH has inserted, since MySQL can't say: those with the fence of this round."""

READ_BY_ADDRESS = _of(_addressed, _KEY, *_entry)
LOCK_BY_ADDRESS = READ_BY_ADDRESS.order_by(*ADDRESS).with_for_update(of=ledger, skip_locked=True)
LOCK_BY_ID = _of(_named, "PRIMARY", *_entry).order_by(ledger.c.id).with_for_update(of=ledger)
LOCK_BY_WORKER = (
    _by_index(select(*_entry), "postroom_ledger_held").where(_IS_RUNNING, ledger.c.worker == bindparam("worker")).with_for_update(of=ledger)
)

_places = recordset("rows", holdups.c.queue, holdups.c.ordering_key)
_first = select(holdups.c.job).where(holdups.c.ordering_key == _places.c.ordering_key, holdups.c.queue == _places.c.queue)
FIRST_HOLDUPS: Select[Any] = select(*_places.c, _first.order_by(holdups.c.seq).limit(1).correlate(_places).scalar_subquery().label("first"))
"""Of each queue and ordering key the job that may go before all others, NULL where any may."""

_done = {"status": "done", "finished_at": now(), "taken_at": null(), "lease_until": null(), "worker": null(), "retry_at": null()}

FINISH = update(ledger).where(ledger.c.id == bindparam("row_id"), ledger.c.fence == bindparam("row_fence"), _IS_RUNNING).values(_done)
FINISH_MANY = (
    update(ledger)
    .where(ledger.c.id == _held.c.id, ledger.c.fence == _held.c.fence, _IS_RUNNING, among("rows", ledger.c.id))
    .values(_done)
    .returning(ledger.c.id, ledger.c.fence)
)
FINISH_LOCKED = update(ledger).where(ledger.c.id.in_(bindparam("ids", expanding=True)), _IS_RUNNING).values(_done)
"""Only of rows that LOCK_BY_ID has locked, and whose fence was right."""

PUT = (
    update(ledger)
    .where(ledger.c.id == _moved.c.id, ledger.c.fence == _moved.c.old_fence, ledger.c.status == _moved.c.old_status, among("rows", ledger.c.id))
    .values({name: _moved.c[name] for name in _MOVED})
)
PUT_EACH = (
    update(ledger)
    .where(ledger.c.id == bindparam("row_id"), ledger.c.fence == bindparam("old_fence"), ledger.c.status == bindparam("old_status"))
    .values({name: bindparam(name) for name in _MOVED})
)
"""The same, a row at a time: MySQL may lock all of a small table for the set-based one."""

HELD = _of(_held, "PRIMARY", ledger.c.id, ledger.c.fence).where(_IS_RUNNING)
LOCK_HELD = _of(_held, "PRIMARY", ledger.c.id).where(_IS_RUNNING).with_for_update(of=ledger, skip_locked=True)
RENEW = update(ledger).where(ledger.c.id.in_(bindparam("ids", expanding=True))).values(lease_until=now() + bindparam("lease", type_=Double))
"""Only of rows that LOCK_HELD has locked."""

RETRY = (
    update(ledger)
    .where(ledger.c.id == bindparam("row_id"), ledger.c.status == "failed", ledger.c.replays == bindparam("old_replays"), ledger.c.digest != FREE)
    .values(status="pending", attempts=0, suspicions=0, copy=0, replays=ledger.c.replays + 1, retry_at=null(), finished_at=null())
)

DISCARD = (
    update(ledger)
    .where(ledger.c.id == bindparam("row_id"), ledger.c.status == "failed", ledger.c.replays == bindparam("old_replays"), ledger.c.digest != FREE)
    .values(digest=FREE, last_error=bindparam("note"))
)
DISCARDED = update(outbox).where(outbox.c.id == bindparam("job"), outbox.c.status == "sent").values(last_error=bindparam("note"))
"""The outbox remembers it of the job itself, when another has taken its key."""

_ENDED_BEFORE = ledger.c.finished_at < now() - bindparam("older_than", type_=Double)
OLD = select(ledger.c.id).where(_ENDED_BEFORE).order_by(ledger.c.finished_at).limit(bindparam("at_most")).with_for_update(skip_locked=True)
PURGE = delete(ledger).where(ledger.c.id.in_(bindparam("ids", expanding=True)), _ENDED_BEFORE)
