"""Which rows are due, in the lanes of one relay: two reads of one index.

Rows leave oldest due first. A row whose publish must be tried again waits for its `retry_at`, and the later rows of its ordering key in its queue
wait for it (`holds`); nobody else does. In an ordered queue the rows of a key also wait for the jobs that hold it up, of which the first waits
for nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import ARRAY, BigInteger, ColumnElement, SmallInteger, and_, any_, bindparam, case, func, literal_column, or_, select

from postroom.adapters.sql.types import constant, now

from .holdups import FIRST_HOLDUP
from .rows import MESSAGE
from .tables import outbox

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Select

__all__ = ["AGAIN", "BODIES", "FRESH", "WHOLE", "among"]

INLINE = 16 * 1024
"""Payloads up to this size (bytes) come with their rows; larger ones are fetched when it is known how many fit into memory."""
WHOLE = "whole"
"""The query for a relay that holds all lanes. The others are for `lanes`, by dialect: postgresql, other."""


def among(column: ColumnElement[int], name: str, dialect: str) -> ColumnElement[bool]:
    """Whether `column` is one of the list bound to `name`: on PostgreSQL one array, so that the statement stays the same for every length."""
    if dialect == "postgresql":
        kind = SmallInteger if isinstance(column.type, SmallInteger) else BigInteger
        return column == any_(bindparam(name, type_=ARRAY(kind)))
    return column.in_(bindparam(name, expanding=True))


# Constants are written out in these statements: a partial index is no use to a plan that does not know them.
_PENDING = outbox.c.status == constant("pending")
_SIZE = func.length(outbox.c.body).label("size")
_SMALL = case((func.length(outbox.c.body) <= literal_column(str(INLINE)), outbox.c.body)).label("body")
_MESSAGE = (_SMALL if column is outbox.c.body else column for column in MESSAGE)
_COLUMNS = (outbox.c.seq, outbox.c.attempts, outbox.c.ordered, outbox.c.available_at, _SIZE, *_MESSAGE)
_HOLDER = outbox.alias("holder")
# A scalar subquery and not an EXISTS: one look into a nearly empty index for each row, which no planner turns into a join of all with all.
_FIRST_HOLDER = (
    select(_HOLDER.c.seq)
    .where(
        _HOLDER.c.holds == outbox.c.ordering_key,
        _HOLDER.c.queue == outbox.c.queue,
        _HOLDER.c.seq != outbox.c.seq,
        or_(  # of several that hold one key, the first may go
            outbox.c.holds.is_(None),
            _HOLDER.c.available_at < outbox.c.available_at,
            and_(_HOLDER.c.available_at == outbox.c.available_at, _HOLDER.c.seq < outbox.c.seq),
        ),
    )
    .limit(literal_column("1"))
    .scalar_subquery()
)
_IN_ORDER = case((outbox.c.id, 0), (constant(""), _FIRST_HOLDER), value=func.coalesce(FIRST_HOLDUP, constant("")), else_=1)
_OBSTACLE = case((outbox.c.ordered, _IN_ORDER), else_=_FIRST_HOLDER)
_IS_FREE = func.coalesce(_OBSTACLE, 0) < 1  # not IS NULL: PostgreSQL takes that for so unlikely that it prepares to read the whole line


def _queries(waiting: ColumnElement[bool]) -> Mapping[str, Select[Any]]:
    """Up to `limit` of the rows that are `waiting` and held by none, in the order of the index."""
    query = select(*_COLUMNS).where(_PENDING, waiting, _IS_FREE).order_by(outbox.c.retry_at, outbox.c.available_at, outbox.c.seq)
    query = query.limit(bindparam("limit", type_=BigInteger, literal_execute=True))
    some = {dialect: query.where(among(outbox.c.lane, "lanes", dialect)) for dialect in ("postgresql", "other")}
    return {WHOLE: query, **some}


FRESH = _queries(and_(outbox.c.retry_at.is_(None), outbox.c.available_at >= bindparam("start"), outbox.c.available_at <= now()))
"""Rows that were never tried, in their places from `start` on."""
AGAIN = _queries(outbox.c.retry_at <= now())
"""Rows that may be tried again."""
BODIES = select(outbox.c.seq, outbox.c.body).where(outbox.c.seq.in_(bindparam("seqs", expanding=True)))
"""The payloads of rows that came without."""
