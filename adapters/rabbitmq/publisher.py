"""Publishing as a caller sees it: messages go in, and one outcome for each comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.adapters.errors import AccessDenied, InvalidMessage, Unavailable
from postroom.adapters.seam import Outcome, Verdict

from .confirms import UNROUTABLE, Confirms
from .content import encode
from .layout import lane_key
from .postings import Posting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroom.adapters.seam import Message

    from .links import Link
    from .options import Options

__all__ = ["Publisher"]


class Publisher:
    """Any thread may publish. Blocks until all is answered, or nothing has been for `Options.confirm_timeout` seconds; before that, to connect."""

    def __init__(self, options: Options, link: Link[Confirms]) -> None:
        self._options = options
        self._link = link
        self._ordered: dict[str, bool] = {}

    def publish(self, messages: Sequence[Message]) -> list[Outcome]:
        """Publish in order. Where a queue is new here its first message goes first, and finds out whether it is an ordered one.

        Raises AccessDenied: it concerns no message.
        """
        outcomes: dict[int, Outcome] = {}
        while scouts := self._scouts(messages, outcomes):
            self._explore(messages, scouts, outcomes)
        rest = {index: message for index, message in enumerate(messages) if index not in outcomes}
        outcomes |= self._send(rest, self._ordered)
        return [self._told(message, outcomes[index]) for index, message in enumerate(messages)]

    def post(self, postings: Sequence[Posting]) -> list[Outcome]:
        """Publish what is addressed and encoded already. Raises AccessDenied."""
        try:
            return self._link.get().publish(postings, self._options.confirm_timeout) if postings else []
        except AccessDenied:
            raise
        except Unavailable as error:
            return [Outcome(Verdict.UNKNOWN, str(error))] * len(postings)

    def _scouts(self, messages: Sequence[Message], outcomes: Mapping[int, Outcome]) -> dict[int, Message]:
        """The first message to each queue that is new here."""
        first: dict[str, int] = {}
        for index, message in enumerate(messages):
            if message.queue not in self._ordered and index not in outcomes:
                first.setdefault(message.queue, index)
        return {index: messages[index] for index in first.values()}

    def _explore(self, messages: Sequence[Message], scouts: Mapping[int, Message], outcomes: dict[int, Outcome]) -> None:
        """Send the scouts. Where one found no way, all others to its queue get its outcome too: they would not be confirmed either."""
        for ordered in (False, True):
            lost = {index: scout for index, scout in scouts.items() if outcomes.get(index, UNROUTABLE) is UNROUTABLE}
            found = self._send(lost, dict.fromkeys((scout.queue for scout in lost.values()), ordered))
            outcomes |= found
            self._ordered |= {scouts[index].queue: ordered for index, outcome in found.items() if _was_routed(outcome)}
        stuck = {scout.queue: outcomes[index] for index, scout in scouts.items() if scout.queue not in self._ordered}
        for index, message in enumerate(messages):
            outcome = stuck.get(message.queue)
            if outcome is not None and outcome.verdict is not Verdict.REFUSED:
                outcomes.setdefault(index, outcome)

    def _send(self, messages: Mapping[int, Message], ordered: Mapping[str, bool]) -> dict[int, Outcome]:
        outcomes: dict[int, Outcome] = {}
        postings: dict[int, Posting] = {}
        for index, message in messages.items():
            try:
                postings[index] = self._posting(message, ordered=ordered.get(message.queue, False))
            except InvalidMessage as refusal:
                outcomes[index] = Outcome(Verdict.REFUSED, str(refusal))
        return outcomes | dict(zip(postings, self.post([*postings.values()]), strict=True))

    def _posting(self, message: Message, *, ordered: bool) -> Posting:
        routing_key = lane_key(message.queue, message.ordering_key, message.id) if ordered else message.queue
        return Posting(self._options.exchange, routing_key, message.id, encode(message), message.body)

    def _told(self, message: Message, outcome: Outcome) -> Outcome:
        if outcome is not UNROUTABLE:
            return outcome
        self._ordered.pop(message.queue, None)  # it may come back as another one
        return Outcome(Verdict.BUSY, f"queue {message.queue!r} is not declared; run `postroom declare ...` or start its worker")


def _was_routed(outcome: Outcome) -> bool:
    return outcome is not UNROUTABLE and outcome.verdict in {Verdict.CONFIRMED, Verdict.BUSY}
