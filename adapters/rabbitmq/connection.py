"""One AMQP connection and the thread that serves it: heartbeats are answered whatever the rest of the process does."""

from __future__ import annotations

import logging
import re
import ssl
import struct
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from pika import SelectConnection
from pika.exceptions import (
    AMQPError,
    IncompatibleProtocolError,
    InvalidFieldTypeException,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from postroom.adapters.errors import AccessDenied, PostroomError, Unavailable

from .refusals import ACCESS_REFUSED
from .tables import read_header_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pika
    from pika.channel import Channel as PikaChannel

    from .options import Options

__all__ = ["Connection", "Listener"]

_log = logging.getLogger("postroom.rabbitmq")

_CLOSED = re.compile(r"\((\d+)\) ['\"](.*)['\"]", re.DOTALL)

GOODBYE = 2.0
"""How long (seconds) to wait for the broker's answer to a goodbye: one that has an alarm reads none."""

SPARE = 1.0
"""How much later (seconds) than pika itself a caller stops waiting."""


class Listener(Protocol):
    """Who wants to know what happens to a connection. Called on its thread, and there only."""

    def lost(self, why: PostroomError) -> None:
        """It has ended: nothing that was sent and not answered will be answered. Called once."""


class Connection:
    """Opened by `open`, and of no use any more once it is lost: whoever needs another one makes it."""

    def __init__(self, options: Options, role: str) -> None:
        self._options = options
        self._role = role
        self._inbox: deque[Callable[[], object]] = deque()
        self._woken = False
        self._listeners: list[Listener] = []
        self._gate = threading.Lock()  # who listens, and that it is lost: never one without the other
        self._decided = threading.Event()
        self._impl: SelectConnection | None = None
        self._is_open = self._tried = False
        self._why: PostroomError = Unavailable(f"can't connect to RabbitMQ at {options.where}: no answer")
        self._lost: PostroomError | None = None
        self._thread = threading.Thread(target=self._run, name=f"postroom-rabbitmq-{role}", daemon=True)

    def open(self) -> None:
        """Connect to the first host that answers. Blocks up to `Options.connect_timeout`. Raises Unavailable, or AccessDenied."""
        self._thread.start()
        if not self._decided.wait(self._options.connect_timeout + SPARE):
            self.abort(self._why)
            raise self._why
        if not self._is_open:
            raise self._lost or self._why

    @property
    def lost(self) -> PostroomError | None:
        """Why it is of no use any more; None while it is."""
        return self._lost

    @property
    def frame_max(self) -> int:
        """The largest frame (bytes) that both sides agreed on."""
        return int(self._impl.params.frame_max) if self._impl else 0

    @property
    def bytes_received(self) -> int:
        """How much has come from the broker: what stands still for longer than a heartbeat is dead."""
        return int(self._impl.bytes_received) if self._impl else 0

    def listen(self, listener: Listener) -> None:
        """Tell `listener` when the connection is lost. Raises what it was lost for, if it is."""
        with self._gate:
            if self._lost:
                raise self._lost
            self._listeners.append(listener)

    def ignore(self, listener: Listener) -> None:
        """Tell it no more."""
        with self._gate:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def post(self, work: Callable[[], object]) -> None:
        """Have `work` done on the connection's thread, behind what was posted before. Any thread; never blocks.

        Raises what the connection was lost for, if it is. What is posted is done in any case: should it be lost meanwhile, behind `Listener.lost`.
        """
        with self._gate:
            if self._lost:
                raise self._lost
            self._inbox.append(work)
        impl = self._impl
        if impl is not None and not self._woken:  # one wake-up for all that is posted until it is answered
            self._woken = True
            impl.ioloop.add_callback_threadsafe(self._work)

    def channel(self, opened: Callable[[PikaChannel], None]) -> PikaChannel:
        """Begin to open a channel. On the connection's thread only. Raises pika's errors when the connection is closing."""
        return self._pika.channel(on_open_callback=opened)

    def write(self, frames: Sequence[bytes]) -> None:
        """Send frames that are encoded already. On the connection's thread only.

        pika's own basic_publish hands each frame to the kernel by itself, three for a message; this is its door behind that. (`tests` watch it.)
        """
        self._pika._output_marshaled_frames(frames)  # noqa: SLF001

    def on_blocked(self, blocked: Callable[[str], None]) -> None:
        """Call `blocked` with the broker's reason when it takes no publishes for now, and with nothing when it does again. On its thread only."""
        self._pika.add_on_connection_blocked_callback(lambda _, frame: blocked(frame.method.reason or "no reason given"))
        self._pika.add_on_connection_unblocked_callback(lambda *_: blocked(""))

    def abort(self, why: PostroomError) -> None:
        """End it without a goodbye: it is believed dead. Any thread; does not wait."""
        with suppress(PostroomError):  # lost already
            self.post(partial(self._terminate, why))

    def close(self) -> None:
        """Say goodbye, for up to GOODBYE seconds, then hang up. May be called twice."""
        with suppress(PostroomError):
            self.post(self._say_goodbye)
        self._thread.join(GOODBYE)
        if self._thread.is_alive():
            self.abort(Unavailable("closed here, and the broker did not answer"))
            self._thread.join(SPARE)

    @property
    def _pika(self) -> SelectConnection:
        if self._impl is None or self._lost:
            raise self._lost or self._why
        return self._impl

    def _run(self) -> None:
        """The thread: one host after the other until one has been connected to, and has ended."""
        try:
            for parameters in self._options.parameters(self._role):
                self._serve(parameters)
                if self._is_open:
                    break
        except Exception as error:  # noqa: BLE001 - pika's own, or of a callback: whatever it is, who waits must be told
            _log.exception("the thread of a connection to RabbitMQ broke down")
            self._why = Unavailable(f"the thread of a connection to RabbitMQ broke down: {type(error).__name__}: {error}")
        finally:
            self._end()

    def _serve(self, parameters: pika.ConnectionParameters) -> None:
        impl = _Tolerant(
            parameters,
            on_open_callback=self._opened,
            on_open_error_callback=partial(self._failed, parameters),
            on_close_callback=self._closed,
        )
        self._impl, self._woken = impl, False
        self.post(lambda: None)  # what was posted before there was anything to wake
        try:
            impl.ioloop.start()
        finally:
            impl.ioloop.close()

    def _opened(self, _: object) -> None:
        self._is_open = True
        self._decided.set()

    def _failed(self, parameters: pika.ConnectionParameters, impl: SelectConnection, error: BaseException) -> None:
        """The next host will be tried, if there is one."""
        before = f"{self._why}; nor at " if self._tried else "can't connect to RabbitMQ at "
        self._tried = True
        self._why = _error(error, f"{before}{parameters.host}:{parameters.port}")
        impl.ioloop.stop()

    def _closed(self, impl: SelectConnection, error: BaseException) -> None:
        self._why = _error(error, "lost the connection to RabbitMQ")
        impl.ioloop.stop()

    def _work(self) -> None:
        self._woken = False
        for _ in range(len(self._inbox)):
            work = self._inbox.popleft()
            try:
                work()
            except (AMQPError, PostroomError) as error:  # the channel or connection has just gone: its listener has been told, or will be
                _log.debug("too late for %r: %s", work, error)

    def _say_goodbye(self) -> None:
        if self._is_open and self._pika.is_open:
            self._pika.close()

    def _terminate(self, why: PostroomError) -> None:
        if not self._pika.is_closed:
            self._pika._terminate_stream(_Aborted(str(why)))  # noqa: SLF001 - pika has no way to give up on a peer that does not answer

    def _end(self) -> None:
        with self._gate:
            self._lost = self._why
            listeners, self._listeners = self._listeners, []
        self._decided.set()
        for listener in listeners:
            listener.lost(self._why)
        self._work()


class _Tolerant(SelectConnection):
    """A message with headers that pika can't read must not end the connection: it would come again, and end the next one."""

    def _read_frame(self) -> tuple[int, pika.frame.Frame | pika.frame.ProtocolHeader | None]:
        try:
            return super()._read_frame()
        except (ValueError, OverflowError, OSError, struct.error, InvalidFieldTypeException):
            return read_header_frame(self._frame_buffer)


class _Aborted(AMQPError):
    """We hung up."""


def _error(error: BaseException, doing: str) -> PostroomError:
    denied = isinstance(error, (ProbableAuthenticationError, ProbableAccessDeniedError)) or getattr(error, "reply_code", 0) == ACCESS_REFUSED
    return (AccessDenied if denied else Unavailable)(f"{doing}: {_said(error)}")


def _said(error: BaseException) -> str:
    """What went wrong, out of pika's wrappings: errors in errors, and errors as text."""
    if isinstance(error, IncompatibleProtocolError):
        return "it hung up at once: no RabbitMQ is there, or only behind TLS (amqps:)"
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return "no TLS is spoken there: write amqp:, or name the port for TLS (5671)"
    inner = getattr(error, "exceptions", ())[-1:] or (getattr(error, "exception", None), *error.args)
    for cause in inner:
        if isinstance(cause, BaseException):
            return _said(cause)
    text = error.args[0] if len(error.args) == 1 else str(error)
    closed = _CLOSED.search(str(text))
    return f"{closed[2]} ({closed[1]})" if closed else str(text) or type(error).__name__
