"""What several subcommands share on the command line: where the database and the broker are, durations, `--json`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DEFAULT_URL", "Settings", "as_json", "connections", "duration", "filled", "names"]

DEFAULT_URL = "sqlite:///postroom.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where the database and the broker are, as far as anyone said so."""

    database: str | None = None
    broker: str | None = None

    @property
    def database_url(self) -> str:
        """The database that was named, or the file postroom.db here."""
        return self.database or DEFAULT_URL

    @property
    def broker_url(self) -> str:
        """The broker that was named; by default the queues are in the database itself."""
        return self.broker or self.database_url


def _override(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Let what stands behind the subcommand win over what stands before it, and over the environment."""
    if value is not None and parameter.name is not None:
        context.obj = replace(context.find_object(Settings) or Settings(), **{parameter.name: value})


def filled(text: str) -> str:
    """Return `text`, if there is any: a script's variable that is not set must not mean the default, or all. A click type."""
    if not text.strip():
        raise click.BadParameter("it is empty; leave the option out for its default")
    return text


def names(text: str) -> tuple[str, ...]:
    """Return the names in `a,b`, at least one. A click type."""
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    filled("".join(found))
    return found


def connections(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let --database and --broker stand behind the subcommand too; it receives one `settings`."""
    for name, hint in (("broker", "Where the queues are."), ("database", "Where outbox and ledger are.")):
        command = click.option(f"--{name}", type=filled, metavar="URL", expose_value=False, callback=_override, help=hint)(command)
    return click.make_pass_decorator(Settings, ensure=True)(command)


as_json: Final = click.option("--json", "json", is_flag=True, help="Answer in JSON.")


_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def duration(text: str) -> float:
    """Return seconds for a length of time with its unit: 500ms, 10s, 5m, 2h, 1d, 1h30m. A click type."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise click.BadParameter(f"{text!r} is no duration; write it like 500ms, 10s, 5m, 2h or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
