"""Sent rows back into the line: for messages that were confirmed and that the broker has lost since."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from sqlalchemy import bindparam, select, update

from postroom.adapters.sql.types import constant

from .holdups import hold_up
from .rows import wake
from .tables import outbox

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from .holdups import Holdup

__all__ = ["Again", "send_again"]

_SENT = (outbox.c.status == constant("sent"), outbox.c.sent_at <= bindparam("before"))
_LOCK = select(outbox.c.seq).where(outbox.c.seq.in_(bindparam("seqs", expanding=True)), *_SENT).order_by(outbox.c.seq).with_for_update()
_AGAIN = (
    update(outbox)
    .where(outbox.c.seq.in_(bindparam("seqs", expanding=True)), *_SENT)
    .values(status="pending", sent_at=None, attempts=0, retry_at=None, holds=None)
)
_RESTAMP = update(outbox).where(outbox.c.seq == bindparam("row")).values(headers=bindparam("packed"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A row that is to be published again. `headers` are others than it has, if any; `holdups`: whom it goes before, in an ordered queue."""

    seq: int
    headers: bytes | None = None
    holdups: Sequence[Holdup] = ()


def send_again(connection: Connection, rows: Sequence[Again], *, before: float) -> Sequence[int]:
    """Let relays publish these rows again, the same message at its old place in the line, once the transaction commits.

    Only those that are still as they were sent at `before` (the database's clock) or earlier: safe to repeat. Returns their `seq`s.
    """
    found = set(connection.execute(_LOCK, {"seqs": [row.seq for row in rows], "before": before}).scalars())
    meant = [row for row in rows if row.seq in found]
    if meant:
        connection.execute(_AGAIN, {"seqs": [row.seq for row in meant], "before": before})
        if stamped := [{"row": row.seq, "packed": row.headers} for row in meant if row.headers is not None]:
            connection.execute(_RESTAMP, stamped)
        hold_up(connection, list(chain.from_iterable(row.holdups for row in meant)))
        wake(connection)
    return [row.seq for row in meant]
