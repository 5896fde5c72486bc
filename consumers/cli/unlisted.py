"""What to say of a broker that lists none of its queues to its clients (RabbitMQ)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.adapters.seam import Adapter

__all__ = ["tell_what_is_unlisted"]


def tell_what_is_unlisted(adapter: Adapter, known: Sequence[str]) -> None:
    """Say on standard error where was looked, and how to look further, if there may be more than was looked into."""
    if not adapter.capabilities.lists:
        click.echo(
            f"postroom: {adapter.capabilities.name} lists no queues; looked into those of which outbox or ledger know: {', '.join(known) or 'none'}. "
            "With --app MODULE:JOBS it is all of an application's",
            err=True,
        )
