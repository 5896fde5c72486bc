"""What each database says in its own way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import literal_column, select

from postroom.adapters.errors import ConfigurationError

from .due import ANY_DUE
from .engine import reading
from .inserting import InsertJobs, insert_as_json, insert_into_mysql, insert_into_sqlite
from .statements import BY_ARRAY, BY_LIST, Statements
from .taking import Takes, take_by_array, take_by_list, take_locked
from .transaction import transact

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sqlalchemy import Connection, Engine

__all__ = ["Dialect", "dialect_of"]

SMALL_BODY = 2**18
"""A body of this many bytes is small enough for every server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one database does it."""

    statements: Statements
    insert: InsertJobs
    takes: Takes
    may_be_due: Callable[[Engine, Collection[str]], bool]
    """Whether it is worth trying to take from these carriers: where a take that finds nothing is cheap, always."""
    largest_body: Callable[[Connection], int]
    """The most bytes of a body that this server takes."""


def _look_first(engine: Engine, carriers: Collection[str]) -> bool:
    """Looking for work must not keep others from writing."""
    return transact(reading(engine), lambda connection: connection.scalar(ANY_DUE, {"carriers": [*carriers]})) is not None


def _always(_engine: Engine, _carriers: Collection[str]) -> bool:
    return True


def _half_a_packet(connection: Connection) -> int:
    """The driver sends a statement as one packet, in which each byte of a body may take two."""
    packet: int = connection.execute(select(literal_column("@@max_allowed_packet"))).scalar_one()
    return packet // 2 - SMALL_BODY


_SQLITE = Dialect(
    statements=BY_LIST,
    insert=insert_into_sqlite,
    takes=take_by_list(),
    may_be_due=_look_first,
    largest_body=lambda _: 500_000_000,
)
_POSTGRESQL = Dialect(
    statements=BY_ARRAY,
    insert=insert_as_json,
    takes=take_by_array(),
    may_be_due=_always,
    largest_body=lambda _: 250_000_000,
)
_MYSQL = Dialect(
    statements=BY_LIST,
    insert=insert_into_mysql,
    takes=take_locked(),
    may_be_due=_always,
    largest_body=_half_a_packet,
)
_DIALECTS = {"sqlite": _SQLITE, "postgresql": _POSTGRESQL, "mysql": _MYSQL, "mariadb": _MYSQL}


def dialect_of(engine: Engine) -> Dialect:
    """Raise ConfigurationError for a database that Postroom doesn't know."""
    if engine.dialect.name not in _DIALECTS:
        raise ConfigurationError(f"Postroom keeps jobs in {', '.join(_DIALECTS)}, not in {engine.dialect.name}")
    return _DIALECTS[engine.dialect.name]
