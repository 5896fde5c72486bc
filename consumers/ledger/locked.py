"""Rows under lock in one transaction: as they were read, and as it was decided that they shall be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from postroom.adapters.errors import IllegalTransition

from .entry import Entry
from .recordset import document
from .statements import COLUMNS, FINISH_LOCKED, PUT, PUT_EACH

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sqlalchemy import Connection, Row

__all__ = ["Address", "Locked"]

Address: TypeAlias = tuple[str, str, str]
"""Key, type and group: what makes a row the only one."""
Change: TypeAlias = tuple[Entry, Entry]
"""A row before and after."""


class Locked:
    """The rows that a SELECT returned, each with the database's time as its last column; `now` is that time, 0 when there is no row."""

    def __init__(self, rows: Iterable[Row[Any]]) -> None:
        self.now = 0.0
        self._before: dict[int, Entry] = {}
        for row in rows:
            entry = Entry(**dict(zip(COLUMNS, row[:-1], strict=True)))
            self.now = row[-1]
            self._before[entry.id] = entry
        self._after: dict[int, Entry] = {}
        self._ids: dict[Address, int] = {(entry.key, entry.type, entry.group_name): entry.id for entry in self._before.values()}

    def __iter__(self) -> Iterator[Entry]:
        """Return the rows as they were read, in that order."""
        return iter(self._before.values())

    def get(self, row_id: int | None) -> Entry | None:
        """Return the row of this id as it is now, or shall be."""
        return None if row_id is None else self._after.get(row_id) or self._before.get(row_id)

    def at(self, address: Address) -> Entry | None:
        """Return the row of this address as it is now, or shall be."""
        return self.get(self._ids.get(address))

    def change(self, entry: Entry) -> None:
        """It was decided that the row of this id shall be so."""
        self._after[entry.id] = entry

    @property
    def changes(self) -> list[Change]:
        """Each row that changes, before and after, in the order in which they were read."""
        return [(before, self._after[before.id]) for before in self if before.id in self._after]

    def store(self, connection: Connection) -> None:
        """Write what has changed. Raises IllegalTransition, for the caller to roll back, if a row has moved in spite of its lock."""
        changes = self.changes
        if not changes:
            return
        stored = _store_together(connection, changes) if connection.dialect.update_returning else _store_each(connection, changes)
        if stored != len(changes):
            raise IllegalTransition(f"only {stored} of {len(changes)} rows of the ledger are as they were when they were locked; nothing changed")


def _store_together(connection: Connection, changes: Sequence[Change]) -> int:
    return connection.execute(PUT, {"rows": document(_moved(before, after) for before, after in changes)}).rowcount


def _store_each(connection: Connection, changes: Sequence[Change]) -> int:
    """For MySQL, which may lock all of a small table to change some rows of it together. What is done is quick all the same: it is all alike."""
    done = [after.id for _, after in changes if after.status == "done"]
    others = [{"row_id": after.id, **_moved(before, after)} for before, after in changes if after.status != "done"]
    stored = connection.execute(FINISH_LOCKED, {"ids": done}).rowcount if done else 0
    return stored + (connection.execute(PUT_EACH, others).rowcount if others else 0)


def _moved(before: Entry, after: Entry) -> dict[str, Any]:
    return {**{name: getattr(after, name) for name in COLUMNS}, "old_fence": before.fence, "old_status": before.status}
