"""The database connection of one attempt's session: another thread may cut it, and then the attempt's transaction is gone at once."""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sqlalchemy import event

from postroom.adapters.errors import IllegalTransition, LeaseLost

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

__all__ = ["Line", "supervise"]

_log = logging.getLogger("postroom.worker")

_LINE = "postroom_line"
_ENDS_A_TRANSACTION = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/|;)*(?:BEGIN|START\s+TRANSACTION|COMMIT|END|ABORT|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO))\b",
    re.IGNORECASE | re.DOTALL,
)
_COMMITS = "the handler committed its session: the worker does that, together with `done`, when the handler returns; or use a session of your own"
_IDLE = 0  # libpq's name for a connection outside of a transaction


class Line:
    """What an attempt's session speaks through. `cut` is for any thread, all else for the session's own.

    `opened`: whether the session has ever begun a transaction.
    """

    def __init__(self) -> None:
        self.opened = False
        self.may_commit = False
        self._used = False
        self._cut = False
        self._driver: Any = None
        self._lock = threading.Lock()  # whoever cuts holds it, so that the connection is nobody else's by then

    @property
    def is_cut(self) -> bool:
        """Whether somebody has cut it."""
        return self._cut

    def hold(self, connection: Connection) -> None:
        """The session has begun a transaction on this connection. Raises LeaseLost, and drops the connection, when the line was cut before."""
        with self._lock:
            if not self._cut:
                self.opened = True
                connection.info[_LINE] = self
                self._driver = connection.connection.driver_connection
                return
        connection.invalidate()
        raise LeaseLost("this attempt is over: nothing it does is stored")

    def let_go(self) -> None:
        """Its connection goes back to the pool. Blocks while it is being cut."""
        with self._lock:
            self._driver = None

    def check(self) -> None:
        """Raise IllegalTransition when the transaction that was begun has ended behind our back."""
        if self._used and self._driver is not None and not _in_transaction(self._driver):
            raise IllegalTransition(_COMMITS)

    def cut(self) -> None:
        """End the transaction at once, whatever its session is doing, which then meets an error. Returns at once."""
        self._cut = True
        threading.Thread(target=self._interrupt, name="postroom-cut", daemon=True).start()

    def _interrupt(self) -> None:
        with self._lock:
            if self._driver is not None:
                try:
                    _interrupt(self._driver)
                except Exception as error:  # noqa: BLE001 - a connection that is broken already, or a driver that we don't know
                    _log.info("the connection of an attempt that is over was not interrupted: %s", error)

    def used(self, statement: str) -> None:
        """The session executes this. Raises IllegalTransition for what would end the transaction."""
        self._used = True
        if not self.may_commit and _ENDS_A_TRANSACTION.match(statement):
            raise IllegalTransition(_COMMITS)


def supervise(engine: Engine) -> None:
    """Have this engine's connections tell the line that holds them what is done with them."""
    if not event.contains(engine, "checkin", _checked_in):
        event.listen(engine, "checkin", _checked_in)
        event.listen(engine, "commit", _committed)
        event.listen(engine, "before_cursor_execute", _executed)


def _checked_in(_driver: object, record: Any) -> None:  # noqa: ANN401 - SQLAlchemy's hook
    if line := record.info.pop(_LINE, None):
        line.let_go()


def _committed(connection: Connection) -> None:
    line: Line | None = connection.info.get(_LINE)
    if line is not None and not line.may_commit:
        connection.connection.rollback()  # SQLAlchemy takes the transaction for ended, and would give it to the next user of the connection
        raise IllegalTransition(_COMMITS)


def _executed(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
    line: Line | None = connection.info.get(_LINE)
    if line is not None:
        line.used(statement)


def _in_transaction(driver: Any) -> bool:  # noqa: ANN401 - any driver's connection
    """What the driver itself knows; those of MySQL know nothing before a table is touched, so they are believed."""
    if hasattr(driver, "pgconn"):
        return bool(driver.pgconn.transaction_status != _IDLE)
    return bool(getattr(driver, "in_transaction", True))


def _interrupt(driver: Any) -> None:  # noqa: ANN401 - any driver's connection
    driver = getattr(driver, "_conn", driver)  # aiosqlite's own, which it uses in a thread
    if hasattr(driver, "interrupt"):
        _interrupt_sqlite(driver)
        return
    if hasattr(driver, "pgconn"):
        with suppress(Exception):  # a statement that runs ends now; the server would else find out about us only when it is done
            driver.pgconn.get_cancel().cancel()
    _hang_up(_socket_of(driver))


def _interrupt_sqlite(driver: Any) -> None:  # noqa: ANN401 - sqlite3's connection
    """End what runs, see to it that nothing more can be written, and give the lock back."""
    driver.interrupt()
    driver.execute("PRAGMA query_only = ON")
    driver.rollback()
    driver.close()


def _socket_of(driver: Any) -> int:  # noqa: ANN401 - any driver's connection
    """The number of its socket: psycopg's and psycopg2's, PyMySQL's, aiomysql's."""
    if hasattr(driver, "fileno"):
        return int(driver.fileno())
    if (writer := getattr(driver, "_writer", None)) is not None:
        return int(writer.get_extra_info("socket").fileno())
    return int(driver._sock.fileno())  # noqa: SLF001 - it has no other


def _hang_up(number: int) -> None:
    """Close the line, not the number: the session's own thread may be reading from it."""
    with socket.socket(fileno=os.dup(number)) as line:
        line.shutdown(socket.SHUT_RDWR)
