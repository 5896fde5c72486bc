"""The tables of Postroom on a real database: made, required, printed.

It knows the tables whose modules have been imported: the queue's always, all of them after `import postroom.consumers`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import func, inspect, select, text
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from postroom.adapters.errors import ConfigurationError, SchemaDrift, Unavailable

from . import tables as _ours  # noqa: F401 - the queue's tables are known here by themselves
from .drift import differences
from .engine import prepare, reading, shown
from .metadata import metadata
from .transaction import translated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection, Engine, Table
    from sqlalchemy.schema import DDLElement

__all__ = ["check", "create", "dump", "require"]

LOCK_SECONDS = 60
_LOCK = 0x706F7374726F6F6D  # "postroom", as PostgreSQL likes its locks named
_DIALECTS = {"sqlite": sqlite.dialect, "postgresql": postgresql.dialect, "mysql": mysql.dialect, "mariadb": mysql.dialect}
_OLDEST = {"sqlite": (3, 35), "postgresql": (12,), "mysql": (8, 0, 1), "mariadb": (10, 6)}  # RETURNING, SKIP LOCKED


def create(engine: Engine) -> list[str]:
    """Make what is missing of tables and indexes; return the names of what was made. It never changes or drops what is there.

    May be repeated, and done by several processes at once: they take turns, for up to a minute each.
    Raises Unavailable, AccessDenied, or ConfigurationError for a server that is too old.
    """
    with translated(engine), prepare(engine).begin() as connection, _alone(connection):
        _require_version(connection)
        before = _names(connection)
        metadata.create_all(connection)
        columns = {table.name: {column["name"] for column in inspect(connection).get_columns(table.name)} for table in metadata.sorted_tables}
        for table in metadata.sorted_tables:
            for index in table.indexes:
                if {column.name for column in index.columns} <= columns[table.name]:
                    index.create(connection, checkfirst=True)
        return sorted(_names(connection) - before)


def check(engine: Engine, tables: Sequence[Table] = ()) -> list[str]:
    """Compare these tables, or all, with what is there; return a line for each difference, with the command that mends it. Nothing is changed."""
    with translated(engine), reading(engine).begin() as connection:
        _require_version(connection)
        return differences(connection, tables or metadata.sorted_tables)


def require(engine: Engine, tables: Sequence[Table] = ()) -> None:
    """Raise SchemaDrift, in one line, unless these tables, or all, are as they should be.

    For whoever is about to use them for long: a few dozen reads of the catalogue, some hundredths of a second.
    """
    if drift := check(engine, tables):
        more = f" (and {len(drift) - 1} more)" if len(drift) > 1 else ""
        where = shown(engine)
        raise SchemaDrift(f"{where}: {drift[0]}{more}; `postroom schema check` lists all")


def dump(dialect: str) -> str:
    """Return the DDL for `sqlite`, `postgresql`, `mysql` or `mariadb`, ready for its command line client."""
    if dialect not in _DIALECTS:
        raise ConfigurationError(f"no DDL for {dialect!r}: use one of {', '.join(_DIALECTS)}")
    target = _DIALECTS[dialect]()
    statements: list[DDLElement] = []
    for table in metadata.sorted_tables:
        statements += [CreateTable(table), *map(CreateIndex, sorted(table.indexes, key=lambda index: str(index.name)))]
    return "\n".join(f"{str(statement.compile(dialect=target)).strip()};\n" for statement in statements)


def _require_version(connection: Connection) -> None:
    name = "mariadb" if getattr(connection.dialect, "is_mariadb", False) else connection.dialect.name
    version, oldest = connection.dialect.server_version_info or (), _OLDEST.get(name, ())
    if version < oldest:
        actual, needed = (".".join(map(str, numbers)) for numbers in (version, oldest))
        raise ConfigurationError(f"this is {name} {actual}, and Postroom needs {needed} or later")


def _names(connection: Connection) -> set[str]:
    """The tables and indexes of ours that are there."""
    inspector = inspect(connection)
    tables = {table.name for table in metadata.sorted_tables} & set(inspector.get_table_names())
    return tables | {str(index["name"]) for table in tables for index in inspector.get_indexes(table)}


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """Have no other process make tables meanwhile. SQLite's transaction is a lock in itself."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
        yield
    elif connection.dialect.name in {"mysql", "mariadb"}:
        if connection.execute(select(func.get_lock("postroom_schema", LOCK_SECONDS))).scalar() != 1:
            raise Unavailable(f"another process has been making tables for {LOCK_SECONDS} s")
        try:
            yield
        finally:  # it is the connection's, which goes back to its pool
            connection.execute(select(func.release_lock("postroom_schema")))
    else:
        yield
