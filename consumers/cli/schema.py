"""The subcommand `postroom schema`: Postroom's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import postroom.consumers.tables  # noqa: F401 - all of them, before they are made or compared
from postroom.adapters.sql import schema
from postroom.adapters.sql.engine import DRIVERS
from postroom.adapters.sql.metadata import metadata
from postroom.adapters.urls import redact, scheme_of

from .connect import database, missing_file
from .exits import NO
from .options import Settings, as_json, connections
from .output import echo_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Engine

__all__ = ["command"]


@click.group(
    epilog="""\b
Examples:
  postroom schema create                       make what is missing, in ./postroom.db
  postroom schema check                        exit code 1, and a line for each difference, if there is one
  postroom schema dump --dialect postgresql    the DDL, for migrations of your own
"""
)
def command() -> None:
    """Postroom's tables: create them, check them, print them."""


@command.command(
    epilog="""\b
Examples:
  postroom schema create                                                  in ./postroom.db
  postroom schema create --database postgresql://user:password@host/shop
"""
)
@as_json
@connections
def create(settings: Settings, *, json: bool) -> int | None:
    """Make the tables and indexes that are missing. What is there is never changed; to run it twice does no harm.

    Where it is other than it should be: exit code 1, and a line for each difference with what mends it.
    """
    code = None
    for engine, where in _engines(settings):
        made, drift = schema.create(engine), schema.check(engine)
        code = NO if drift else code
        if json:
            echo_json({"database": where, "created": made, "differences": drift})
        else:
            click.echo("\n".join(_told(where, made, drift)))
    return code


@command.command(
    epilog="""\b
Example:
  postroom schema check --json
"""
)
@as_json
@connections
def check(settings: Settings, *, json: bool) -> int | None:
    """Compare with what is there.

    Exit code 1 where it differs, and a line for each difference with what mends it.
    """
    code = None
    for engine, where in _engines(settings):
        drift = [said] if (said := missing_file(where)) else schema.check(engine)
        code = NO if drift else code
        if json:
            echo_json({"database": where, "differences": drift})
        else:
            click.echo("\n".join(drift) if drift else f"{where}: all is as it should be")
    return code


@command.command(
    epilog="""\b
Example:
  postroom schema dump --dialect mariadb | mysql shop
"""
)
@click.option("--dialect", type=click.Choice(["sqlite", "postgresql", "mysql", "mariadb"]), help="For which database.  [default: that of --database]")
@connections
def dump(settings: Settings, dialect: str | None) -> None:
    """Print the DDL. Nothing is connected."""
    click.echo(schema.dump(dialect or scheme_of(settings.database_url)), nl=False)


def _told(where: str, made: Sequence[str], drift: Sequence[str]) -> Iterator[str]:
    if made or not drift:
        yield f"{where}: made {_counted(made)}" if made else f"{where}: all is there"
    if drift:
        yield f"{where}: what follows is there, but not as it should be, and is not altered:"
        yield from drift


def _counted(made: Sequence[str]) -> str:
    tables = [name for name in made if name in metadata.tables]
    indexes = len(made) - len(tables)
    return ", ".join([*tables, *([f"{indexes} index{'es' if indexes > 1 else ''}"] if indexes else [])])


def _engines(settings: Settings) -> Iterator[tuple[Engine, str]]:
    """The database, and the broker where that is another SQL database; each with how it may be shown."""
    brokers = [settings.broker_url] if scheme_of(settings.broker_url) in DRIVERS else []
    for url in dict.fromkeys([settings.database_url, *brokers]):
        with database(Settings(database=url), new=True) as engine:
            yield engine, redact(url)
