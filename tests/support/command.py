"""The `postroom` command as a user runs it: a process of its own, in a folder of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

COMMAND = [sys.executable, "-P", "-m", "postroom.consumers.cli"]
"""-P: as with the installed script, modules are not searched in the working directory first."""


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of this process, without the caller's own POSTROOM_ variables."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("POSTROOM_")}, **variables}


def postroom(*arguments: str, cwd: Path, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end; `variables` are added to its environment."""
    return subprocess.run(
        [*COMMAND, *arguments], cwd=cwd, env=environment(variables), input=stdin, check=False, capture_output=True, text=True, timeout=120
    )
