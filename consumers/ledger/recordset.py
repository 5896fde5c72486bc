"""Many rows in one statement with one parameter: a JSON document that the database itself reads as a table.

The statement is the same for one row and for a thousand, so it is compiled and prepared once; the driver sends one string instead of
a thousand values, which is most of what a round costs in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Boolean, Text, bindparam, column, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from sqlalchemy import Column, ColumnElement, TableValuedAlias
    from sqlalchemy.sql.compiler import SQLCompiler
    from sqlalchemy.types import TypeEngine

__all__ = ["among", "document", "recordset"]

_encode = msgspec.json.Encoder().encode


def document(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the parameter's value: one object for each row, by column name."""
    return _encode(list(rows)).decode()


def recordset(parameter: str, *like: Column[Any], **renamed: Column[Any]) -> TableValuedAlias:
    """Return the rows of `parameter` as a table, in their order; its columns are named and typed as those `like`, or typed as those `renamed`."""
    named = {**{other.name: other for other in like}, **renamed}
    columns = [column(name, _plain(other.type)) for name, other in named.items()]
    return _Recordset(bindparam(parameter, type_=Text()), *columns).table_valued(*columns, name="given")


def among(parameter: str, column: Column[Any]) -> ColumnElement[bool]:
    """Return a condition that changes nothing beside a join of `column` with the rows of `parameter`, but for PostgreSQL's plan.

    A plan is made once and kept. One that was made while the table was small would read all of it ever after; with this, each plan there can be
    looks only for the rows that are given.
    """
    given = recordset(parameter, column)
    return _Among(column, select(given.c[column.name]).scalar_subquery())


def _plain(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    return kind if kind.python_type in {int, float} else Text()


class _Recordset(FunctionElement[Any]):
    """Its first clause is the document; the others are columns without a table, here so that they count for the cache of compiled statements."""

    name = "postroom_recordset"
    inherit_cache = True


class _Among(FunctionElement[bool]):
    type = Boolean()
    inherit_cache = True


@compiles(_Among)
def _any(_element: _Among, _compiler: SQLCompiler, **_: Any) -> str:  # noqa: ANN401 - SQLAlchemy's hook
    return "1 = 1"


@compiles(_Among, "postgresql")
def _any_postgresql(element: _Among, compiler: SQLCompiler, **how: Any) -> str:  # noqa: ANN401 - SQLAlchemy's hook
    column, values = element.clauses
    return f"{compiler.process(column, **how)} = ANY (ARRAY{compiler.process(values, **how)})"


@compiles(_Recordset, "postgresql")
def _postgresql(element: _Recordset, compiler: SQLCompiler, **how: Any) -> str:  # noqa: ANN401 - SQLAlchemy's hook
    columns = ", ".join(f"{name} {kind}" + (' COLLATE "C"' if kind == "TEXT" else "") for name, kind in _columns(element, compiler))
    return f"(SELECT * FROM json_to_recordset(CAST({_rows(element, compiler, how)} AS json)) AS _ ({columns}))"  # noqa: S608 - our own names


@compiles(_Recordset, "sqlite")
def _sqlite(element: _Recordset, compiler: SQLCompiler, **how: Any) -> str:  # noqa: ANN401 - SQLAlchemy's hook
    columns = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name, _ in _columns(element, compiler))
    return f"(SELECT {columns} FROM json_each({_rows(element, compiler, how)}))"  # noqa: S608 - our own names


@compiles(_Recordset, "mysql", "mariadb")
def _mysql(element: _Recordset, compiler: SQLCompiler, **how: Any) -> str:  # noqa: ANN401 - SQLAlchemy's hook
    paths = [(f"{name} {kind}" + (" CHARACTER SET utf8mb4" if kind == "TEXT" else ""), name.strip("`")) for name, kind in _columns(element, compiler)]
    columns = ", ".join(f"{column} PATH '$.{name}'" for column, name in paths)
    return f"(SELECT * FROM JSON_TABLE({_rows(element, compiler, how)}, '$[*]' COLUMNS ({columns})) AS _)"  # noqa: S608 - our own names


def _rows(element: _Recordset, compiler: SQLCompiler, how: dict[str, Any]) -> str:
    return compiler.process(next(iter(element.clauses)), **how)


def _columns(element: _Recordset, compiler: SQLCompiler) -> Iterator[tuple[str, str]]:
    """The name, quoted where it must be, and the SQL type of each column."""
    for each in list(element.clauses)[1:]:
        yield compiler.preparer.quote(each.name), compiler.dialect.type_compiler_instance.process(each.type)
