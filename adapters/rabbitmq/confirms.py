"""The broker's side of a publish: many messages under way at once, and for each the one answer that it gets."""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from pika import spec
from pika.exceptions import ChannelClosedByBroker

from postroom.adapters.errors import PostroomError, Unavailable
from postroom.adapters.seam import Outcome, Verdict

from .frames import Frames, fits
from .postings import Batch
from .refusals import NOT_FOUND, PRECONDITION_FAILED, Refusal, size_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pika.channel import Channel as PikaChannel
    from pika.frame import Method

    from .connection import Connection
    from .postings import Posting

__all__ = ["UNROUTABLE", "Confirms"]

_log = logging.getLogger("postroom.rabbitmq")

WINDOW = 2000
"""The most messages under way at a time."""
WINDOW_BYTES = 16 * 2**20
"""The most bytes of bodies under way at a time, but for one message."""
REMEMBERED = 10 * WINDOW
"""Of how many messages an answer that came too late is kept for who asks again."""

GRACE = 5.0
"""How long (seconds) the connection's own thread may take to give up on a batch."""

CONFIRMED = Outcome(Verdict.CONFIRMED)
UNROUTABLE = Outcome(Verdict.BUSY, "no queue is bound for it")
NACKED = Outcome(Verdict.BUSY, "RabbitMQ refused it for now: the queue is full, or not available")
SILENCE = Outcome(Verdict.UNKNOWN, "RabbitMQ gave no answer in time")


class Confirms:
    """Publishes on one connection, on a channel in confirm mode that is opened anew after a refusal.

    What is answered UNKNOWN while it is still under way is remembered: who sends the very same message again gets the answer to the first one.
    So an alarm of the broker's, however long, makes no second copies. All but `publish` happens on the connection's thread.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._channel: PikaChannel | None = None
        self._frames: Frames | None = None
        self._waiting: deque[Posting] = deque()
        self._flight: dict[int, Posting] = {}
        self._flight_bytes = 0
        self._tag = 0
        self._lowest = 1
        self._late: dict[tuple[str, str, str], Posting] = {}
        self._blocked = ""
        self._largest_body: int | None = None
        self._lost: Outcome | None = None

    @classmethod
    def on(cls, connection: Connection) -> Confirms:
        """Publish on a connection that was just opened. Raises what it was lost for, if it is."""
        confirms = cls(connection)
        connection.listen(confirms)
        connection.post(lambda: connection.on_blocked(confirms.blocked))
        return confirms

    def publish(self, postings: Sequence[Posting], silence: float) -> list[Outcome]:
        """Publish in order; return an outcome for each. Any thread. Blocks until all are answered, or none has been for `silence` seconds."""
        batch = Batch.of(postings)
        heard, unanswered = self._connection.bytes_received, SILENCE
        try:
            self._connection.post(partial(self._send, postings))
            if not batch.wait(silence):
                self._connection.post(partial(self._give_up, batch, heard))
                batch.wait(GRACE)
        except PostroomError as lost:
            unanswered = Outcome(Verdict.UNKNOWN, str(lost))
        return [outcome or unanswered for outcome in batch.outcomes]

    def lost(self, why: PostroomError) -> None:
        """The connection is gone; see `Listener`."""
        self._lost = Outcome(Verdict.UNKNOWN, str(why))
        self._fail(self._lost)

    def blocked(self, reason: str) -> None:
        """The broker reads no publishes, or with no reason does again; what is on its way stays there."""
        self._blocked = reason
        if reason:
            _log.warning("RabbitMQ takes no publishes for now: %s", reason)
            self._withdraw(self._not_now)
        else:
            _log.info("RabbitMQ takes publishes again")

    def _send(self, postings: Sequence[Posting]) -> None:
        for posting in postings:
            if not self._is_under_way(posting):
                self._admit(posting)
        self._pump()

    def _give_up(self, batch: Batch, heard: int) -> None:
        """Its caller has heard nothing for too long. If the broker has said nothing at all meanwhile (`heard` bytes then, and now), it is gone."""
        self._withdraw(SILENCE, batch)
        if self._connection.bytes_received == heard and not self._blocked:
            _log.warning("RabbitMQ is silent: hanging up")
            self._connection.abort(Unavailable("RabbitMQ is silent: it confirms nothing, and says nothing"))

    def _pump(self) -> None:
        if self._waiting and self._channel is None:
            self._channel = self._connection.channel(self._opened)
        elif self._frames:
            while self._waiting and self._has_room:
                self._put(self._frames, self._waiting.popleft())
            self._frames.flush()

    @property
    def _has_room(self) -> bool:
        return len(self._flight) < WINDOW and (self._flight_bytes < WINDOW_BYTES or not self._flight)

    def _put(self, frames: Frames, posting: Posting) -> None:
        self._tag += 1
        self._flight[self._tag] = posting
        self._flight_bytes += len(posting.body)
        frames.publish(posting.exchange, posting.routing_key, posting.properties, posting.body)

    def _opened(self, channel: PikaChannel) -> None:
        channel.add_on_close_callback(self._closed)
        channel.add_on_return_callback(self._returned)
        channel.confirm_delivery(self._answered, callback=partial(self._ready, channel))

    def _ready(self, channel: PikaChannel, _: object) -> None:
        self._tag, self._lowest = 0, 1
        self._frames = Frames(self._connection, channel.channel_number)
        self._pump()

    def _returned(self, _: PikaChannel, method: spec.Basic.Return, properties: spec.BasicProperties, __: bytes) -> None:
        """No queue is bound: its confirm comes next, and means nothing. Of those that look the same it is the oldest."""
        address = method.exchange, method.routing_key, properties.message_id or ""
        returned = next((posting for posting in self._flight.values() if posting.address == address and not posting.returned), None)
        if returned is not None:
            returned.returned = True

    def _answered(self, frame: Method[spec.Basic.Ack | spec.Basic.Nack]) -> None:
        method = frame.method
        outcome = CONFIRMED if isinstance(method, spec.Basic.Ack) else NACKED
        for tag in range(self._lowest, method.delivery_tag + 1) if method.multiple else (method.delivery_tag,):
            posting = self._flight.pop(tag, None)
            if posting is not None:
                self._flight_bytes -= len(posting.body)
                posting.answer(UNROUTABLE if posting.returned else outcome)
        if method.multiple:
            self._lowest = method.delivery_tag + 1
        self._pump()

    def _closed(self, _: PikaChannel, reason: Exception) -> None:
        """A refusal that is certainly meant for one message is its answer; what became of the others nobody knows."""
        self._channel = self._frames = None
        if isinstance(reason, ChannelClosedByBroker):
            self._blame(Refusal(reason.reply_code, reason.reply_text))
        self._fail(Outcome(Verdict.UNKNOWN, f"RabbitMQ closed the channel: {reason}"))

    def _blame(self, refusal: Refusal) -> None:
        under_way = list(self._flight.values())
        self._largest_body = size_limit(refusal) or self._largest_body
        for posting in under_way:
            if refusal.code == NOT_FOUND and posting.exchange:  # which is not there; the default one always is
                posting.answer(UNROUTABLE)
            elif refusal.code == PRECONDITION_FAILED and len(under_way) == 1:
                posting.answer(Outcome(Verdict.REFUSED, f"RabbitMQ refuses it: {refusal}"))
            elif reason := self._too_large(posting):
                posting.answer(Outcome(Verdict.REFUSED, reason))

    def _fail(self, outcome: Outcome) -> None:
        """Nothing that is under way will be answered any more."""
        for posting in (*self._flight.values(), *self._waiting):
            posting.answer(outcome)
        self._flight.clear()
        self._waiting.clear()
        self._late.clear()
        self._flight_bytes = 0

    def _withdraw(self, outcome: Outcome, batch: Batch | None = None) -> None:
        """Let callers (all, or one) go with `outcome`: what was not sent will not be, and what is under way is remembered."""
        for posting in self._flight.values():
            if posting.batch is not None and batch in {None, posting.batch}:
                posting.answer(outcome)
                posting.outcome = None
                self._late[posting.address] = posting
        waiting, self._waiting = self._waiting, deque()
        for posting in waiting:
            if batch in {None, posting.batch}:
                posting.answer(outcome)
            else:
                self._waiting.append(posting)
        while len(self._late) > REMEMBERED:
            self._late.pop(next(iter(self._late)))

    def _is_under_way(self, posting: Posting) -> bool:
        """Whether the very same message is still under way, or was answered when nobody waited any more: then that is its answer."""
        late = self._late.get(posting.address)
        if late is None or not posting.is_copy_of(late):
            return False
        if late.outcome is not None:
            posting.answer(late.outcome)
        elif self._blocked:
            return False
        else:
            posting.move_to(late)
        del self._late[posting.address]
        return True

    def _admit(self, posting: Posting) -> None:
        if self._lost or self._blocked:
            posting.answer(self._lost or self._not_now)
        elif reason := self._too_large(posting):
            posting.answer(Outcome(Verdict.REFUSED, reason))
        else:
            self._waiting.append(posting)

    def _too_large(self, posting: Posting) -> str:
        if self._largest_body is not None and len(posting.body) > self._largest_body:
            return f"body: {len(posting.body)} bytes, and this broker takes {self._largest_body} at most"
        if not fits(posting.properties, self._connection.frame_max):
            return f"headers: {len(posting.properties)} bytes, and they must fit one frame of {self._connection.frame_max}"
        return ""

    @property
    def _not_now(self) -> Outcome:
        return Outcome(Verdict.UNKNOWN, f"RabbitMQ takes no publishes for now: {self._blocked}")
