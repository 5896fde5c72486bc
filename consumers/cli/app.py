"""The command's front door: the table of subcommands, each imported when it is named, and the one place where a run ends."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import click

from .exits import MEANINGS, exit_code
from .options import Settings, filled

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COMMANDS", "main", "postroom"]

COMMANDS = {
    "demo": "The story of order 4711, with a worker killed after the work and before the ack.",
    "schema": "Postroom's tables: create them, check them, print them.",
    "declare": "Declare an application's queues on the broker, or compare them with what is there.",
    "enqueue": "Put one job into the outbox.",
    "relay": "Send what waits in the outbox to the broker.",
    "work": "Run an application's handlers.",
    "status": "Where is order 4711's email? Every job of a key, or one job by its id.",
    "dead": "The jobs that were given up: list, show, replay, discard.",
    "resend": "Send jobs again that the broker has lost.",
    "stats": "How many jobs are where, and how old the oldest is.",
}
"""Each subcommand is the `command` of the module of its name in this package; the line is its help in the list of all."""


class LazyGroup(click.Group):
    """A group that imports a subcommand's module only when that subcommand is run or asked for its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Every name of the table, in its order: from first use to daily use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import one subcommand."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f".{cmd_name}", __package__).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """List the subcommands from the table: importing them all would take half a second."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
Start here:
  postroom demo                                   see it work, with nothing to set up
  postroom schema create                          make the tables in ./postroom.db
  postroom work shop:jobs                         run the handlers of `jobs` in shop.py
  postroom status order-4711                      where is it?

\b
Exit codes:
"""
    + "\n".join(f"  {code:<9} {meaning}" for code, meaning in MEANINGS.items()),
)
@click.option(
    "--database",
    type=filled,
    metavar="URL",
    envvar="POSTROOM_DATABASE",
    help="Where outbox and ledger are.  [env: POSTROOM_DATABASE; sqlite:///postroom.db]",
)
@click.option(
    "--broker", type=filled, metavar="URL", envvar="POSTROOM_BROKER", help="Where the queues are.  [env: POSTROOM_BROKER; else the database]"
)
@click.version_option(package_name="postroom", message="%(package)s %(version)s")
@click.pass_context
def postroom(context: click.Context, database: str | None, broker: str | None) -> None:
    """Jobs that survive: written with your data, sent by a relay, done once.

    --database and --broker may also stand behind the subcommand.
    """
    context.obj = Settings(database=database, broker=broker)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command with `arguments` (by default the process's own) and end the process with its exit code."""
    sys.exit(exit_code(lambda: postroom.main(args=arguments, prog_name="postroom", standalone_mode=False)))
