"""The connections of an adapter, each for one purpose: made when it is needed, made anew when it was lost."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Generic, TypeVar

from postroom.adapters.errors import Closed

from .connection import Connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from .options import Options

__all__ = ["Link"]

End = TypeVar("End")


class Link(Generic[End]):
    """At most one connection at a time, and what uses it: `attach` makes that of a new one.

    A forked child makes a connection of its own: two processes that speak on one destroy it.
    """

    def __init__(self, options: Options, role: str, attach: Callable[[Connection], End]) -> None:
        self._options = options
        self._role = role
        self._attach = attach
        self._closed = False
        self._open: tuple[Connection, End] | None = None
        self._inherited: list[object] = []
        self._making = threading.Lock()
        _renew_after_fork(self)

    def get(self) -> End:
        """Return what uses the connection that is open, or open one: that blocks up to `Options.connect_timeout`.

        Raises Unavailable, AccessDenied or Closed.
        """
        with self._making:
            self.require_open()
            if self._open is None or self._open[0].lost:
                connection = Connection(self._options, self._role)
                connection.open()
                self._open = connection, self._attach(connection)
            if self._closed:  # meanwhile
                self._open[0].close()
            self.require_open()
            return self._open[1]

    def require_open(self) -> None:
        """Raise Closed after `close`."""
        if self._closed:
            raise Closed("this adapter is closed")

    def close(self) -> None:
        """Close it, for good; blocks for some seconds at most."""
        self._closed = True
        if self._open is not None:
            self._open[0].close()

    def renew(self) -> None:
        """Forget the parent's connection without a word on it, and whatever its other threads were about to do here."""
        self._inherited.append(self._open)
        self._open = None
        self._making = threading.Lock()


def _renew_after_fork(link: Link[End]) -> None:
    known = weakref.ref(link)

    def renew() -> None:
        if (mine := known()) is not None:
            mine.renew()

    os.register_at_fork(after_in_child=renew)
