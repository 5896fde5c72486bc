"""What to say of queues that could not be looked into: the broker lists none to its clients (RabbitMQ), or has one no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroom.adapters.seam import Adapter

__all__ = ["tell_what_is_gone", "tell_what_is_unlisted"]


def tell_what_is_unlisted(adapter: Adapter, known: Sequence[str]) -> None:
    """Say on standard error where was looked, and how to look further, if there may be more than was looked into."""
    if not adapter.capabilities.lists:
        looked = f"looked in {', '.join(known)}" if known else "it has none that outbox or ledger know"
        click.echo(
            f"postroom: {adapter.capabilities.name} can't list its queues; {looked}. --app MODULE:JOBS looks in all of an application's", err=True
        )


def tell_what_is_gone(gone: Mapping[str, int]) -> None:
    """Say on standard error which queues are not on the broker though jobs were sent there, how many, and what mends it."""
    if gone:
        queues = ", ".join(f"{queue} ({count} sent and not done)" for queue, count in gone.items())
        remedy = "If it was deleted, start its worker and run `postroom resend`; if it is a topic, ask with --app MODULE:JOBS"
        click.echo(f"postroom: the broker has no queue {queues}. {remedy}", err=True)
