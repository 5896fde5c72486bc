"""`postroom relay`: from the outbox to the broker."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

from postroom.adapters.errors import Unavailable
from postroom.adapters.sql.engine import reading
from postroom.adapters.sql.transaction import transact
from postroom.outbox.garbage import collect_seldom
from postroom.outbox.relay import Relay
from postroom.outbox.stats import stats

from .connect import broker, database
from .exits import NO
from .held import held, reasons
from .options import Settings, as_json, connections
from .output import LOG_FORMAT, countdown, echo_json
from .signals import until_signalled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Engine

__all__ = ["command"]


@click.command(
    epilog="""\b
Examples:
  postroom relay            until it is stopped; run as many as you like
  postroom relay --drain    until all that is due is sent
  postroom relay --once     one batch

A worker has a relay of its own for its database; this command is for a service whose workers are elsewhere.
An absent broker or database is waited for, and costs no job an attempt. SIGTERM or Ctrl-C stops it in good order; nothing is ever lost by
stopping it otherwise. With --drain or --once, exit code 1 says that the broker refused some (parked; see `postroom dead list --source outbox`), or
would not take some yet (held, tried again later), and why.
"""
)
@click.option("--once", "extent", flag_value="once", help="Send one batch of what is due, and end.")
@click.option("--drain", "extent", flag_value="drain", help="End when all that is due is sent.")
@as_json
@connections
def command(settings: Settings, extent: str | None, *, json: bool) -> int:
    """Send what waits in the outbox to the broker."""
    with database(settings) as engine, broker(settings) as adapter:
        relay = Relay(engine, adapter)
        if extent is None:
            return _run(relay)
        return _finite(engine, relay, extent, json=json)


def _run(relay: Relay) -> int:
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    collect_seldom()
    with until_signalled() as stopping:
        click.echo("postroom: the relay runs; Ctrl-C stops it", err=True)
        relay.run(stopping)
    return stopping.exit_code


def _finite(engine: Engine, relay: Relay, extent: str, *, json: bool) -> int:
    with countdown("relay", lambda: _due(engine)):
        result = relay.run_once() if extent == "once" else relay.drain()
    if result.outage:
        raise Unavailable(result.outage)
    waiting = held(engine)
    counts = {"sent": result.sent, "parked": result.parked, "held": sum(waiting.values())}
    if json:
        echo_json({**counts, "reasons": dict(waiting)})
    else:
        _say(counts, waiting)
    return NO if result.parked or waiting else 0


def _say(counts: Mapping[str, int], waiting: Mapping[str, int]) -> None:
    click.echo(f"sent {counts['sent']}")
    if counts["parked"]:
        click.echo(f"parked {counts['parked']}: see `postroom dead list --source outbox`")
    if waiting:
        click.echo(reasons(waiting))


def _due(engine: Engine) -> int:
    return sum(backlog.due for backlog in transact(reading(engine), stats).values())
