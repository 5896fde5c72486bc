"""Engine and broker of one run of the command, closed when it ends."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from postroom.adapters.connect import connect
from postroom.adapters.sql.engine import open_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from postroom.adapters.seam import Adapter

    from .options import Settings

__all__ = ["broker", "database"]


@contextmanager
def database(settings: Settings, *, connections: int = 5) -> Iterator[Engine]:
    """The database of outbox and ledger. Raises what `open_engine` raises; nothing is connected before it is used."""
    engine = open_engine(settings.database_url, pool_size=connections)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def broker(settings: Settings) -> Iterator[Adapter]:
    """The broker. Raises what `connect` raises."""
    adapter = connect(settings.broker_url)
    try:
        yield adapter
    finally:
        adapter.close()
