"""All of Postroom's tables, known to one `metadata`: import it from here to create, check, dump or migrate them."""

import postroom.adapters.sql.tables
import postroom.consumers.ledger.tables
import postroom.outbox.tables  # noqa: F401 - each adds its tables
from postroom.adapters.sql.metadata import metadata

__all__ = ["metadata"]
