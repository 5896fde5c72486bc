"""A broker in the test's own hands: what the adapter says is written down, and nothing is answered but what the test has it answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from pika import BasicProperties, spec
from pika.exceptions import ChannelClosedByBroker, ChannelClosedByClient
from pika.frame import decode_frame

from postroom.adapters.errors import PostroomError, Unavailable
from postroom.adapters.rabbitmq.broker import Broker
from postroom.adapters.rabbitmq.layout import Carrier
from postroom.adapters.rabbitmq.options import Options

__all__ = ["FakeChannel", "FakeConnection", "Published", "fake_broker"]


@dataclass(frozen=True, slots=True)
class Published:
    """One message as it went over the wire."""

    exchange: str
    routing_key: str
    mandatory: bool
    properties: BasicProperties
    body: bytes


class FakeChannel:
    """pika's end of a channel. `said` is what was said on it, in order."""

    def __init__(self, number: int) -> None:
        self.channel_number = number
        self.is_open = True
        self.said: list[tuple[Any, ...]] = []
        self._closed: Callable[..., None] = lambda *_: None
        self._returned: Callable[..., None] = lambda *_: None
        self._cancelled: Callable[..., None] = lambda *_: None
        self._confirmed: Callable[..., None] = lambda *_: None
        self._arrive: Callable[..., None] = lambda *_: None

    def add_on_close_callback(self, callback: Callable[..., None]) -> None:
        self._closed = callback

    def add_on_return_callback(self, callback: Callable[..., None]) -> None:
        self._returned = callback

    def add_on_cancel_callback(self, callback: Callable[..., None]) -> None:
        self._cancelled = callback

    def confirm_delivery(self, ack_nack_callback: Callable[..., None], callback: Callable[..., None]) -> None:
        self._confirmed = ack_nack_callback
        callback(_reply())

    def basic_qos(self, *, prefetch_count: int, callback: Callable[..., None] | None = None) -> None:
        self._say("qos", prefetch_count, callback=callback)

    def basic_consume(self, queue: str, on_message_callback: Callable[..., None], callback: Callable[..., None] | None = None, **_: object) -> None:
        self._arrive = on_message_callback
        self._say("consume", queue, callback=callback)

    def basic_cancel(self, consumer_tag: str) -> None:
        self._say("cancel", consumer_tag)

    def basic_ack(self, delivery_tag: int, *, multiple: bool = False) -> None:
        self._say("ack", delivery_tag, multiple)

    def basic_nack(self, delivery_tag: int, *, requeue: bool = True) -> None:
        self._say("nack", delivery_tag, requeue)

    def close(self) -> None:
        self.is_open = False
        self._closed(self, ChannelClosedByClient(0, "Normal shutdown"))

    # The test's end

    @property
    def settled(self) -> list[tuple[Any, ...]]:
        """All acks and nacks."""
        return [said for said in self.said if said[0] in {"ack", "nack"}]

    def deliver(self, tag: int, name: str, *, key: str | None = None) -> None:
        """Deliver the message with this id."""
        headers = {"postroom-rabbitmq-ordering-key": key} if key else None
        method = spec.Basic.Deliver(delivery_tag=tag, routing_key="emails", redelivered=False)
        self._arrive(self, method, BasicProperties(message_id=name, headers=headers), b"{}")

    def confirm(self, tag: int, *, multiple: bool = False) -> None:
        """basic.ack of a publish."""
        self._confirmed(SimpleNamespace(method=spec.Basic.Ack(tag, multiple)))

    def nack(self, tag: int) -> None:
        """basic.nack of a publish."""
        self._confirmed(SimpleNamespace(method=spec.Basic.Nack(tag)))

    def give_back(self, message: Published) -> None:
        """basic.return."""
        method = spec.Basic.Return(312, "NO_ROUTE", message.exchange, message.routing_key)
        self._returned(self, method, message.properties, message.body)

    def refuse(self, code: int, text: str) -> None:
        """Close the channel."""
        self.is_open = False
        self._closed(self, ChannelClosedByBroker(code, text))

    def cancel(self) -> None:
        """basic.cancel, by the server."""
        self._cancelled(_reply())

    def _say(self, *words: object, callback: Callable[..., None] | None = None) -> None:
        self.said.append(words)
        if callback:
            callback(_reply())


@dataclass(slots=True)
class FakeConnection:
    """A connection whose thread is whoever calls. `answer` is called with it each time something was published, and `published` holds what."""

    answer: Callable[[FakeConnection], object] = lambda _: None
    frame_max: int = 131072
    bytes_received: int = 0
    lost: PostroomError | None = None
    aborted: PostroomError | None = None
    channels: list[FakeChannel] = field(default_factory=list)
    published: list[Published] = field(default_factory=list)
    _listeners: list[Any] = field(default_factory=list)
    _blocked: Callable[[str], None] = lambda _: None
    _inbox: deque[Callable[[], object]] = field(default_factory=deque)
    _busy: bool = False

    @property
    def channel_now(self) -> FakeChannel:
        """The one that was opened last."""
        return self.channels[-1]

    def listen(self, listener: object) -> None:
        if self.lost:
            raise self.lost
        self._listeners.append(listener)

    def ignore(self, listener: object) -> None:
        self._listeners = [other for other in self._listeners if other is not listener]

    def post(self, work: Callable[[], object]) -> None:
        if self.lost:
            raise self.lost
        self._inbox.append(work)
        if not self._busy:
            self._busy = True
            while self._inbox:
                self._inbox.popleft()()
            self._busy = False

    def channel(self, opened: Callable[[Any], None]) -> FakeChannel:
        channel = FakeChannel(len(self.channels) + 1)
        self.channels.append(channel)
        self._inbox.append(lambda: opened(channel))
        return channel

    def write(self, frames: Sequence[bytes]) -> None:
        self.published += _messages(b"".join(frames))
        self._inbox.append(lambda: self.answer(self))

    def on_blocked(self, blocked: Callable[[str], None]) -> None:
        self._blocked = blocked

    def abort(self, why: PostroomError) -> None:
        self.aborted = why

    # The test's end

    def block(self, reason: str) -> None:
        """connection.blocked, or connection.unblocked for no reason."""
        self._blocked(reason)

    def break_down(self) -> None:
        """It is lost."""
        self.lost = Unavailable("lost the connection")
        for listener in self._listeners:
            listener.lost(self.lost)


def fake_broker(*connections: FakeConnection, options: Options | None = None, publisher: object = None) -> Broker:
    """A Broker that is on each of these connections in turn, once the one before is lost. Whatever queue is looked for, it is there."""
    line = deque(connections)

    def get() -> FakeConnection:
        while line[0].lost and len(line) > 1:
            line.popleft()
        return line[0]

    def find(_: object, name: str) -> Carrier:
        return Carrier(name=name, dead_letter=f"{name}.dlq")

    return Broker(
        options=options or Options(hosts=(("broker", 5672),), patience=5.0),
        control=SimpleNamespace(get=get, require_open=lambda: None),
        publisher=publisher,
        topology=SimpleNamespace(find=find, restore=lambda channel, name, partly: find(channel, name)),  # noqa: ARG005 - as it is called
    )


def _messages(data: bytes) -> list[Published]:
    """Read publishes off the wire."""
    messages = []
    while data:
        size, method = decode_frame(data)
        data = data[size:]
        size, header = decode_frame(data)
        data = data[size:]
        body = b""
        while len(body) < header.body_size:
            size, part = decode_frame(data)
            data = data[size:]
            body += part.fragment
        publish = method.method
        messages.append(Published(publish.exchange, publish.routing_key, publish.mandatory, header.properties, body))
    return messages


def _reply() -> SimpleNamespace:
    return SimpleNamespace(method=None)
