"""The `postroom` command. Nothing but click is imported until a subcommand is named, so that help and completion are quick."""

from .app import main

__all__ = ["main"]
