"""The subcommand `postroom demo`: the story of order 4711."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from postroom.adapters.errors import ConfigurationError
from postroom.adapters.urls import redact, scheme_of
from postroom.consumers.demo.app import QUEUE_VARIABLE
from postroom.consumers.demo.story import APPLICATION, Story, queue_for

from .connect import broker, database
from .options import Settings
from .output import COLOURS
from .status import what_next

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroom.consumers.status import JobStatus

__all__ = ["command"]


@click.command(
    epilog="""\b
Examples:
  postroom demo
  postroom demo --database postgresql://user:password@localhost/shop
  postroom demo --broker amqp://user:password@localhost
  postroom demo --broker 'kafka://localhost:9092?mode=share'

By itself it uses a new SQLite file in a temporary folder, whatever the environment says. In a database that you name it makes Postroom's tables
and two of its own, shop_orders and shop_sent_emails; on RabbitMQ or Kafka a queue of its own, with its dead letters, and leaves them there. It
takes about ten seconds, with Kafka's classic groups twenty.
"""
)
@click.option("--database", "database_url", metavar="URL", help="Where outbox, ledger and the shop's tables are.  [default: a temporary SQLite file]")
@click.option("--broker", "broker_url", metavar="URL", help="Where the queues are.  [default: the database]")
@click.pass_context
def command(context: click.Context, database_url: str | None, broker_url: str | None) -> None:
    """The story of order 4711: a worker is killed after the work and before the ack, and the customer gets one email."""
    where = _settings(context, database_url, broker_url)
    click.echo(f"Database: {redact(where.database_url)}\nBroker:   {redact(where.broker_url)}\n")
    hasty = replace(where, broker=_hasty(where.broker_url))
    with database(where, new=True) as engine, broker(hasty, new=True) as adapter:
        if not adapter.capabilities.shared:
            raise ConfigurationError(f"{where.broker_url}: the story needs a broker that two processes can see")
        narrator, queue, urls = _Narrator(), queue_for(adapter), {"database": where.database_url, "broker": hasty.broker_url}
        order = Story(**urls, engine=engine, adapter=adapter, queue=queue, tell=narrator.tell, show=narrator.show).run()
    click.echo(_next(where, order, queue))


def _hasty(url: str) -> str:
    """Kafka misses a member of a classic group after 45 s: too long for a story, and 6 s is the least that a broker allows by default."""
    if scheme_of(url) != "kafka" or "session.timeout.ms" in url or "mode=share" in url:
        return url
    return url + ("&" if "?" in url else "?") + "session.timeout.ms=6000&heartbeat.interval.ms=1000"


def _settings(context: click.Context, database_url: str | None, broker_url: str | None) -> Settings:
    """What was named on the command line, before or behind the subcommand. The environment may name a database in earnest: not for a story."""
    parent = context.parent
    said = {
        name: parent.params[name]
        for name in ("database", "broker")
        if parent is not None and parent.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    named = database_url or said.get("database")
    return Settings(database=named or f"sqlite:///{tempfile.mkdtemp(prefix='postroom-demo-')}/postroom.db", broker=broker_url or said.get("broker"))


class _Narrator:
    """Numbers the steps."""

    def __init__(self) -> None:
        self._step = 0

    def tell(self, text: str) -> None:
        """A step."""
        self._step += 1
        click.echo(click.style(f"{self._step}. " + text.replace("\n", "\n   "), bold=True))

    def show(self, status: JobStatus, facts: Mapping[str, int]) -> None:
        """What is there, now."""
        click.echo(f"   $ postroom status {status.key}")
        click.echo(f"   {status.type}  {click.style(status.status, fg=COLOURS[status.status])}  {what_next(status)}")
        click.echo(f"   {', '.join(f'{name}: {count}' for name, count in facts.items())}\n")


def _next(where: Settings, order: int, queue: str) -> str:
    """Variables of the shell's own, not exported: who tries something else in it later means another database."""
    ours, mine = ("", "") if queue == "emails" else (f"{QUEUE_VARIABLE}={queue} ", f" --queue {queue}")  # others may have letters there, too
    named = {"DEMO": where.database_url, **({"DEMO_BROKER": where.broker} if where.broker or "POSTROOM_BROKER" in os.environ else {})}
    me = f'{_me()} --database "$DEMO"' + (' --broker "$DEMO_BROKER"' if "DEMO_BROKER" in named else "")
    return "\n".join(
        [
            "",
            "Try next:",
            "",
            *(f"  {_assigned(name, url or where.broker_url)}" for name, url in named.items()),
            f"  {me} status order-{order}",
            f"  {me} enqueue send-receipt --queue {queue} --key order-{order + 1} --payload '{{\"order_id\": {order + 1}}}'",
            f'  {me} enqueue send-receipt --queue {queue} --key order-{order + 2} --payload \'{{"order_id": "oops"}}\'',
            f"  {ours}{me} work {APPLICATION} --drain    # exit code 1: one of the two is given up",
            f"  {me} status order-{order + 1}",
            f"  {me} dead list{mine}",
            f"  {me} dead discard order-{order + 2}{mine} --reason 'a typo'",
            f"  {me} stats",
        ]
    )


def _assigned(name: str, url: str) -> str:
    shown = redact(url)
    return f"{name}={shlex.quote(shown)}" + ("    # with your password" if "***" in shown else "")


def _me() -> str:
    """How this command is called from here: by its name where that is on the PATH, else by its path."""
    script = Path(sys.argv[0])
    found = shutil.which("postroom")
    if found is not None and script.exists() and Path(found).samefile(script):
        return "postroom"
    return str(script) if script.name == "postroom" else f"{sys.executable} -m postroom.consumers.cli"
