"""What each database says in its own way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import literal_column, select

from postroom.adapters.errors import ConfigurationError

from .inserting import InsertJobs, insert_by_arrays, insert_into_mysql, insert_into_sqlite
from .statements import BY_ARRAY, BY_LIST, Statements
from .taking import Take, take_by_array, take_by_list, take_locked

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Engine

__all__ = ["Dialect", "dialect_of"]

SMALL_BODY = 2**18
"""A body of this many bytes is small enough for every server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one database does it."""

    statements: Statements
    insert: InsertJobs
    take: Take
    take_in_order: Take
    largest_body: Callable[[Connection], int]
    """The most bytes of a body that this server takes."""


def _half_a_packet(connection: Connection) -> int:
    """The driver sends a statement as one packet, in which each byte of a body may take two."""
    packet: int = connection.execute(select(literal_column("@@max_allowed_packet"))).scalar_one()
    return packet // 2 - SMALL_BODY


_SQLITE = Dialect(
    statements=BY_LIST,
    insert=insert_into_sqlite,
    take=take_by_list(in_order=False),
    take_in_order=take_by_list(in_order=True),
    largest_body=lambda _: 500_000_000,
)
_POSTGRESQL = Dialect(
    statements=BY_ARRAY,
    insert=insert_by_arrays,
    take=take_by_array(in_order=False),
    take_in_order=take_by_array(in_order=True),
    largest_body=lambda _: 250_000_000,
)
_MYSQL = Dialect(
    statements=BY_LIST,
    insert=insert_into_mysql,
    take=take_locked(in_order=False),
    take_in_order=take_locked(in_order=True),
    largest_body=_half_a_packet,
)
_DIALECTS = {"sqlite": _SQLITE, "postgresql": _POSTGRESQL, "mysql": _MYSQL, "mariadb": _MYSQL}


def dialect_of(engine: Engine) -> Dialect:
    """Raise ConfigurationError for a database that Postroom doesn't know."""
    if engine.dialect.name not in _DIALECTS:
        raise ConfigurationError(f"Postroom keeps jobs in {', '.join(_DIALECTS)}, not in {engine.dialect.name}")
    return _DIALECTS[engine.dialect.name]
