"""The one MetaData of all tables of Postroom; each layer adds its own. `postroom.consumers` imports them all."""

from __future__ import annotations

from sqlalchemy import MetaData, Table, event

__all__ = ["metadata"]

metadata = MetaData()

_ON_MYSQL = {"engine": "InnoDB", "charset": "utf8mb4", "collate": "utf8mb4_bin"}


@event.listens_for(Table, "after_parent_attach")
def _transactional_and_bytewise(table: Table, parent: object) -> None:
    """Say for each of our tables what MySQL and MariaDB would else take from the server's own settings."""
    if parent is metadata:
        table.kwargs.update({f"{dialect}_{option}": value for dialect in ("mysql", "mariadb") for option, value in _ON_MYSQL.items()})
