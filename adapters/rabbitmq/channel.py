"""A channel for questions and answers: the caller's thread asks, and waits for the broker's answer."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Self

from pika.exceptions import AMQPError, ChannelClosedByBroker

from postroom.adapters.errors import PostroomError, Unavailable

from .refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pika.channel import Channel as PikaChannel

    from .connection import Connection

__all__ = ["Channel"]

GOODBYE = 2.0
"""How long (seconds) to wait for the broker's answer to a goodbye."""


class Channel:
    """One caller's. A refusal closes it; the next question opens a new one. `ended` is called on the connection's thread with the reason, each time.

    Every method blocks for up to `patience` seconds. Raises Unavailable when the connection is lost or no answer comes, Refusal when it is no.
    """

    def __init__(self, connection: Connection, patience: float, *, ended: Callable[[str], None] = lambda _: None) -> None:
        self._connection = connection
        self._patience = patience
        self._ended = ended
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._raw: PikaChannel | None = None
        self._closed = threading.Event()
        connection.listen(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def ask(self, method: str, /, **arguments: Any) -> Any:  # noqa: ANN401 - pika's arguments and its answers
        """Call a method of pika's channel; return the method that the broker answers with."""
        raw = self._raw or self._open()
        return self._answer_to(lambda: getattr(raw, method)(callback=self._answers.put, **arguments)).method

    def tell(self, say: Callable[[PikaChannel], object]) -> None:
        """Say something that has no answer, and don't wait. On a channel that is closed nothing is said; a refusal is told to the next question.

        Raises Unavailable when the connection is lost.
        """
        raw = self._raw
        if raw is not None:
            self._connection.post(lambda: say(raw))

    def close(self) -> None:
        """What was delivered on it and not settled goes back to its queue. Blocks for GOODBYE seconds at most. May be called twice."""
        self._connection.ignore(self)
        raw = self._raw
        if raw is not None:
            with suppress(PostroomError):  # it went with its connection
                self._connection.post(partial(_close, raw))
                self._closed.wait(GOODBYE)

    def lost(self, why: PostroomError) -> None:
        """The connection is gone; see `Listener`."""
        self._answers.put(why)
        self._ended(str(why))

    def _open(self) -> PikaChannel:
        raw: PikaChannel = self._answer_to(partial(self._connection.channel, self._opened))
        return raw

    def _opened(self, raw: PikaChannel) -> None:
        raw.add_on_close_callback(self._on_close)
        self._raw = raw
        self._closed.clear()
        self._answers.put(raw)

    def _on_close(self, _: PikaChannel, reason: Exception) -> None:
        self._raw = None
        self._closed.set()
        if isinstance(reason, ChannelClosedByBroker):
            refusal = Refusal(reason.reply_code, reason.reply_text)
            self._answers.put(refusal)
            self._ended(f"RabbitMQ closed the channel: {refusal}")

    def _answer_to(self, question: Callable[[], object]) -> Any:  # noqa: ANN401 - see `ask`
        self._connection.post(partial(self._put, question))
        try:
            answer = self._answers.get(timeout=self._patience)
        except Empty:
            raise Unavailable(f"RabbitMQ gave no answer within {self._patience:g} s") from None
        if isinstance(answer, AMQPError):
            raise Unavailable(f"RabbitMQ can't be asked: {answer}")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _put(self, question: Callable[[], object]) -> None:
        try:
            question()
        except Exception as error:  # noqa: BLE001 - pika's, about the arguments or the channel: it is for who asked
            self._answers.put(error)


def _close(raw: PikaChannel) -> None:
    if raw.is_open:
        raw.close()
