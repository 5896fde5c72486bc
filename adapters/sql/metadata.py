"""The one MetaData of all tables of Postroom; each layer adds its own. `postroom.consumers` imports them all."""

from sqlalchemy import MetaData

__all__ = ["metadata"]

metadata = MetaData()
