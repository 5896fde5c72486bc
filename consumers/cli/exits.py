"""The one place where what went wrong becomes one line on stderr and an exit code.

`MEANINGS` is what help and README say of them. After an orderly stop it is 130 for SIGINT (Ctrl-C) and 143 for SIGTERM, as shells have it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from postroom.adapters.errors import ConfigurationError, InvalidMessage, PostroomError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DONE", "INTERRUPTED", "MEANINGS", "NO", "TERMINATED", "UNREACHABLE", "USAGE", "exit_code"]

DONE, NO, USAGE, UNREACHABLE = 0, 1, 2, 3
INTERRUPTED, TERMINATED = 128 + 2, 128 + 15

MEANINGS = {
    "0": "done",
    "1": "the answer is no: drift, unknown key, jobs given up or left waiting by a drain or a resend, a canary that failed",
    "2": "a mistake of the caller's: usage, URL, application, payload",
    "3": "the database or the broker can't be reached, its tables are missing, or no worker process can start",
    "130, 143": "stopped by SIGINT (Ctrl-C) or SIGTERM, in good order",
}

_CODES: tuple[tuple[type[Exception], int], ...] = (
    (ConfigurationError, USAGE),
    (InvalidMessage, USAGE),
    (Unavailable, UNREACHABLE),
    (PostroomError, NO),
)


def exit_code(run: Callable[[], object]) -> int:
    """Call `run`; tell on stderr what went wrong, in one line, and return the exit code of it. A bug keeps its traceback."""
    output = sys.stdout  # click puts another in its place, and exits, when the reader of a pipe goes away (`| head`)
    try:
        code = run()
    except click.ClickException as error:
        _tell(error)
        return USAGE
    except PostroomError as error:
        click.echo(f"postroom: {error}", err=True)
        return next(code for kind, code in _CODES if isinstance(error, kind))
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except SystemExit:
        if sys.stdout is output:
            raise
        _forget_stdout()
        return DONE
    return code if isinstance(code, int) else DONE


def _tell(error: click.ClickException) -> None:
    """In one line, where click would take three. Without any argument there is no mistake to tell: click shows the help."""
    context = getattr(error, "ctx", None)
    if context is None or type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return
    said = " ".join(error.format_message().split()).rstrip(".")
    click.echo(f"postroom: {said}; `{context.command_path} --help` has examples", err=True)


def _forget_stdout() -> None:
    """Keep Python from complaining once more, when it flushes at exit, that nobody reads."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
