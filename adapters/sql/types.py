"""Column types and the database's clock: what makes one schema mean the same on SQLite, PostgreSQL, MySQL and MariaDB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, ColumnElement, Double, Integer, LargeBinary, String, TypeDecorator, literal_column
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

if TYPE_CHECKING:
    from sqlalchemy import Dialect
    from sqlalchemy.sql.compiler import SQLCompiler
    from sqlalchemy.types import TypeEngine

__all__ = ["Blob", "Instant", "Key", "Sequence", "constant", "now"]

Instant = Double
"""Seconds since the epoch by the database's clock: plain arithmetic, no time zones, microseconds until the year 2100."""

Blob = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
Sequence = BigInteger().with_variant(Integer(), "sqlite")
"""An ascending primary key: only INTEGER gets a rowid in SQLite."""


def constant(text: str) -> ColumnElement[str]:
    """A word of ours, written into the statement itself: behind a parameter no planner can see that a partial index fits."""
    return literal_column(f"'{text}'", String())


class Key(TypeDecorator[str]):
    """Text that is compared byte by byte on every database, with no folding of case, accents or trailing blanks. The limit is in bytes."""

    impl = String
    cache_ok = True

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """VARBINARY where collations fold, the C collation on PostgreSQL, SQLite's own BINARY else."""
        if dialect.name in {"mysql", "mariadb"}:
            return dialect.type_descriptor(mysql.VARBINARY(self.limit))
        return dialect.type_descriptor(String(self.limit, collation="C" if dialect.name == "postgresql" else None))

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ANN401 - the driver's type, by dialect
        """Encode for VARBINARY."""
        return value.encode() if value is not None and dialect.name in {"mysql", "mariadb"} else value

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ANN401, ARG002 - the driver's type, by dialect
        """Decode from VARBINARY."""
        return value.decode() if isinstance(value, bytes) else value


class now(FunctionElement[float]):  # noqa: N801 - reads as the SQL function it is
    """The time by the database's clock, in seconds since the epoch: the only clock that every host shares."""

    type = Double()
    inherit_cache = True


@compiles(now, "postgresql")
def _now_postgresql(_element: now, _compiler: SQLCompiler, **_: Any) -> str:  # noqa: ANN401 - SQLAlchemy's hook
    # Of the statement, not the wall clock of each row: a volatile function could not bound the scan of an index.
    return "extract(epoch from statement_timestamp())::double precision"


@compiles(now, "mysql", "mariadb")
def _now_mysql(_element: now, _compiler: SQLCompiler, **_: Any) -> str:  # noqa: ANN401 - SQLAlchemy's hook
    return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1000000e0)"  # UTC: no session time zone, no hour twice


@compiles(now, "sqlite")
def _now_sqlite(_element: now, _compiler: SQLCompiler, **_: Any) -> str:  # noqa: ANN401 - SQLAlchemy's hook
    return "((julianday('now') - 2440587.5) * 86400.0)"
