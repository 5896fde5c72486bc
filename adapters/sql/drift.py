"""How the tables that are there differ from those that should be, and what mends it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlalchemy import UniqueConstraint, inspect
from sqlalchemy.schema import CreateColumn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Column, Connection, Dialect, Inspector, Table
    from sqlalchemy.engine.interfaces import ReflectedColumn
    from sqlalchemy.types import TypeEngine

__all__ = ["differences"]

_CREATE = "run `postroom schema create`"
_NOISE = re.compile(r"(?<=INT|GER)\(\d+\)| (?:COLLATE|CHARACTER SET) \S+")
_SAME = {"BOOL": "TINYINT"}


def differences(connection: Connection, tables: Sequence[Table]) -> list[str]:
    """One line for each table, column, key or index that is missing or other than it should be."""
    inspector, dialect = inspect(connection), connection.dialect
    lines = []
    for table in tables:
        if inspector.has_table(table.name):  # in whichever schema a statement would find it
            lines += [*_of_columns(inspector, table, dialect), *_of_keys(inspector, table), *_of_indexes(inspector, table, dialect)]
        else:
            lines.append(f"table {table.name} is missing: {_CREATE}")
    return lines


def _of_columns(inspector: Inspector, table: Table, dialect: Dialect) -> Iterator[str]:
    there = {column["name"]: column for column in inspector.get_columns(table.name)}
    for column in table.columns:
        if column.name not in there:
            yield f"column {column} is missing: ALTER TABLE {table.name} ADD COLUMN {_ddl(column, dialect)}{_filling(column, dialect)}"
        elif (actual := _actual(there[column.name], dialect)) != (expected := _expected(column, dialect)):
            yield f"column {column} is {actual}, expected {expected}: {_alter(column, dialect)}"


def _of_keys(inspector: Inspector, table: Table) -> Iterator[str]:
    primary = inspector.get_pk_constraint(table.name)["constrained_columns"]
    expected = [column.name for column in table.primary_key]
    if primary != expected:
        yield f"table {table.name} has the primary key ({', '.join(map(str, primary))}), expected ({', '.join(expected)}): {_make_anew(table.name)}"
    unique = {tuple(key["column_names"]) for key in inspector.get_unique_constraints(table.name)}
    unique |= {tuple(map(str, index["column_names"])) for index in inspector.get_indexes(table.name) if index["unique"]}
    wanted = {tuple(constraint.columns.keys()) for constraint in table.constraints if isinstance(constraint, UniqueConstraint)}
    for names in sorted(wanted - unique):
        command = f"CREATE UNIQUE INDEX {'_'.join((table.name, *names))} ON {table.name} ({', '.join(names)})"
        yield f"table {table.name} does not keep ({', '.join(names)}) unique: {command}"


def _of_indexes(inspector: Inspector, table: Table, dialect: Dialect) -> Iterator[str]:
    there = {index["name"]: _shape(index["column_names"], index["unique"]) for index in inspector.get_indexes(table.name)}
    on_table = f" ON {table.name}" if dialect.name in {"mysql", "mariadb"} else ""
    for index in sorted(table.indexes, key=lambda index: str(index.name)):
        if index.name not in there:
            yield f"index {index.name} of table {table.name} is missing: {_CREATE}"
        elif (actual := there[index.name]) != (expected := _shape(index.columns.keys(), index.unique)):
            difference = f"index {index.name} of table {table.name} covers {actual}, expected {expected}"
            yield f"{difference}: DROP INDEX {index.name}{on_table}, then {_CREATE}"


def _shape(columns: Sequence[str | None], unique: object) -> str:
    return f"({', '.join(map(str, columns))}){' unique' if unique else ''}"


def _actual(column: ReflectedColumn, dialect: Dialect) -> str:
    return _kind(column["type"], dialect, nullable=column["nullable"])


def _expected(column: Column[object], dialect: Dialect) -> str:
    return _kind(column.type, dialect, nullable=bool(column.nullable))


def _kind(kind: TypeEngine[object], dialect: Dialect, *, nullable: bool) -> str:
    """The type as it would be declared, without what says nothing: display widths, and collations that the table has already."""
    declared = _NOISE.sub("", kind.compile(dialect).replace('"', ""))
    return f"{_SAME.get(declared, declared)}{'' if nullable else ' NOT NULL'}"


def _alter(column: Column[object], dialect: Dialect) -> str:
    if dialect.name == "sqlite":
        return _make_anew(column.table.name)
    if dialect.name != "postgresql":
        return f"ALTER TABLE {column.table} MODIFY COLUMN {_ddl(column, dialect)}"
    name, nullness = dialect.identifier_preparer.quote(column.name), "DROP" if column.nullable else "SET"
    kind = column.type.compile(dialect)
    return f"ALTER TABLE {column.table} ALTER COLUMN {name} TYPE {kind}, ALTER COLUMN {name} {nullness} NOT NULL"


def _make_anew(table: str) -> str:
    return f"ALTER TABLE {table} RENAME TO {table}_old, then {_CREATE} and copy the rows"


def _ddl(column: Column[object], dialect: Dialect) -> str:
    return str(CreateColumn(column).compile(dialect=dialect)).strip()


def _filling(column: Column[object], dialect: Dialect) -> str:
    """What the rows that are there get in a new column that may not be empty. MySQL has such a value by itself."""
    if column.nullable or dialect.name in {"mysql", "mariadb"}:
        return ""
    empty = {str: "''", bytes: "''", bool: "false"}
    return f" DEFAULT {empty.get(column.type.python_type, '0')}"
