"""Engine and broker of one run of the command, closed when it ends."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from postroom.adapters.connect import connect
from postroom.adapters.errors import SchemaDrift
from postroom.adapters.sql.engine import engine_url, open_engine
from postroom.adapters.urls import redact, scheme_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from postroom.adapters.seam import Adapter

    from .options import Settings

__all__ = ["broker", "database", "missing_file"]


@contextmanager
def database(settings: Settings, *, connections: int = 5, new: bool = False) -> Iterator[Engine]:
    """The database of outbox and ledger; only where it may be `new` is a SQLite file made.

    Raises SchemaDrift when there is no such file, and what `open_engine` raises; nothing is connected before it is used.
    """
    if not new:
        _require_file(settings.database_url)
    engine = open_engine(settings.database_url, pool_size=connections)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def broker(settings: Settings, *, new: bool = False) -> Iterator[Adapter]:
    """The broker; as to SQLite files see `database`. Raises SchemaDrift, and what `connect` raises."""
    if not new:
        _require_file(settings.broker_url)
    adapter = connect(settings.broker_url)
    try:
        yield adapter
    finally:
        adapter.close()


def missing_file(url: str) -> str | None:
    """A line about the SQLite file of this URL when it is not there: SQLite itself would make an empty one, to be wondered at later."""
    file = engine_url(url).database if scheme_of(url) == "sqlite" else None
    if not file or file.startswith("file:") or Path(file).exists():
        return None
    return f"{redact(url)}: there is no such file; run `postroom schema create`"


def _require_file(url: str) -> None:
    if said := missing_file(url):
        raise SchemaDrift(said)
