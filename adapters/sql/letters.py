"""The dead letters of one carrier: its failed rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Double, Integer, bindparam, or_, select

from postroom.adapters.seam import DeadLetter

from .content import CONTENT, message_of, pack, unpack
from .engine import reading
from .statements import BY_LIST, PUT_BACK
from .tables import FAILED, MAX_QUEUE, jobs
from .transaction import transact
from .types import Key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection, Engine, Row

    from postroom.adapters.seam import Header

__all__ = ["SqlDeadLetters"]

_DIGITS = 19
"""A number of so many may be none of a database's."""

_carrier = bindparam("carrier", type_=Key(MAX_QUEUE))
_died_at = bindparam("died_at", type_=Double)
_most: Any = bindparam("most", type_=Integer)
_LETTERS = select(*(jobs.c[name] for name in (*CONTENT, "finished_at", "last_error"))).where(jobs.c.queue == _carrier, jobs.c.status == FAILED)
_YOUNGER = or_(jobs.c.finished_at > _died_at, (jobs.c.finished_at == _died_at) & (jobs.c.seq > bindparam("number", type_=jobs.c.seq.type)))
_PAGE = _LETTERS.where(_YOUNGER).order_by(jobs.c.finished_at, jobs.c.seq).limit(_most)
_CHOSEN = _LETTERS.where(BY_LIST.these).with_for_update()


class SqlDeadLetters:
    """See `postroom.adapters.seam.DeadLetters`. A letter's id names one death: a job that dies again gets another one."""

    def __init__(self, engine: Engine, carrier: str, published_to: str) -> None:
        self._engine = engine
        self._carrier = carrier
        self._published_to = published_to

    def list(self, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        """Return letters by the time of their death."""
        died_at, number = _death(after) if after is not None else (-1.0, 0)
        page = {"carrier": self._carrier, "died_at": died_at, "number": number, "most": limit}
        rows = transact(reading(self._engine), lambda connection: connection.execute(_PAGE, page).all())
        return [self._letter(row) for row in rows]

    def take(self, ids: Sequence[str]) -> Sequence[DeadLetter]:
        """Remove and return letters; in an ordered queue the next job of the key may go then."""

        def work(connection: Connection) -> Sequence[Row[Any]]:
            rows = self._dig_out(connection, ids)
            if rows:
                connection.execute(BY_LIST.remove, {"seqs": [row.seq for row in rows]})
            return rows

        return [self._letter(row) for row in transact(self._engine, work)]

    def put_back(self, ids: Sequence[str], headers: Mapping[str, Mapping[str, Header]] | None = None) -> Sequence[str]:
        """failed -> pending, in one transaction."""
        given = headers or {}

        def work(connection: Connection) -> Sequence[Row[Any]]:
            rows = self._dig_out(connection, ids)
            if rows:
                packed = [{"number": row.seq, "packed": pack({**unpack(row.headers), **given.get(_letter_id(row), {})})} for row in rows]
                connection.execute(PUT_BACK, packed)
            return rows

        return [_letter_id(row) for row in transact(self._engine, work)]

    def _dig_out(self, connection: Connection, ids: Sequence[str]) -> Sequence[Row[Any]]:
        """Lock those of these letters that are still there, in the order asked for."""
        places = {letter: place for place, letter in enumerate(ids)}
        numbers = [number for _, number in map(_death, places) if number]
        found = connection.execute(_CHOSEN, {"carrier": self._carrier, "seqs": numbers}).all() if numbers else ()
        return sorted((row for row in found if _letter_id(row) in places), key=lambda row: places[_letter_id(row)])

    def _letter(self, row: Row[Any]) -> DeadLetter:
        message = message_of(row, self._published_to)
        return DeadLetter(
            id=_letter_id(row), message=message, queue=self._carrier, reason=row.last_error, attempts=row.attempts, died_at=row.finished_at
        )


def _letter_id(row: Row[Any]) -> str:
    return f"{row.finished_at!r}-{row.seq}"


def _death(letter: str) -> tuple[float, int]:
    """When the job of a letter died, and its number; (0, 0) for an id that no letter has."""
    died_at, _, number = letter.rpartition("-")
    try:
        return float(died_at), int(number) if len(number) < _DIGITS else 0
    except ValueError:
        return 0.0, 0
