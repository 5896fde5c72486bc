"""What handlers raise and messages hold gets into log lines: it must not act on the terminal that shows them, nor pass for lines of the worker's."""

from __future__ import annotations

import logging
import traceback

from postroom.adapters.text import one_line, visible

__all__ = ["LOGGERS", "Visible", "guard"]

LOGGERS = ("postroom.worker", "postroom.supervisor")


class Visible(logging.Filter):
    """Shows control characters in the arguments and the traceback of a record instead of letting them act; lets every record pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record in place, as every handler will get it."""
        if isinstance(record.args, tuple):
            record.args = tuple(arg if isinstance(arg, int | float) else one_line(str(arg)) for arg in record.args)
        if isinstance(record.exc_info, tuple) and not record.exc_text:
            record.exc_text = visible("".join(traceback.format_exception(*record.exc_info)).rstrip("\n"))
        return True


def guard() -> None:
    """Set the filter on the worker's own loggers, once however often it is asked."""
    for logger in map(logging.getLogger, LOGGERS):
        if not any(isinstance(known, Visible) for known in logger.filters):
            logger.addFilter(Visible())
