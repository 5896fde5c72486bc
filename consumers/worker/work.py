"""A delivery on its way through the worker, and the attempts that run at this moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from postroom.consumers.ledger.answers import Claim
from postroom.consumers.payload import Misfit

from .line import Line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from postroom.adapters.seam import Delivery, Header
    from postroom.consumers.jobs import Handler
    from postroom.consumers.ledger.answers import Started
    from postroom.consumers.mapping import Mapped
    from postroom.outbox.envelope import Envelope

    from .gates import GateName
    from .lanes import Lane

__all__ = ["Passed", "Receipt", "Refused", "Running", "Work", "claim_of"]


@dataclass(slots=True, kw_only=True, eq=False)
class Receipt:
    """One delivery from its arrival until it is settled. Compared by identity."""

    delivery: Delivery


@dataclass(slots=True, kw_only=True, eq=False)
class Refused(Receipt):
    """What arrived is no job, as far as anybody here can read it."""

    reason: str


@dataclass(slots=True, kw_only=True, eq=False)
class Passed(Receipt):
    """What arrived is no job, says the mapper of its queue."""


@dataclass(slots=True, kw_only=True, eq=False)
class Work(Receipt):
    """A job and its handler. One thread at a time changes it.

    `mapped`: what a mapper has made of it, if another program sent it. `misfit`: why no handler can have it; it fails for good without being run.

    `gates`: what it may not run beside; `inside`: it has passed them. `alone`: it was answered Later, so it is begun in a round of its own.
    `started`: the attempt, once begun.
    `deadline`: when its time is up, by the worker's clock. `fenced`: it may change nothing any more. `cancel`: how to interrupt it, if it can be.
    `line`: the connection of its session. `unmark`: how to write that its end is decided.
    """

    envelope: Envelope
    handler: Handler
    digest: str
    mapped: Mapped | None = None
    misfit: str = ""
    gates: Sequence[GateName] = ()
    inside: bool = False
    alone: bool = False
    started: Started | None = None
    deadline: float | None = None
    fenced: bool = False
    cancel: Callable[[], object] | None = None
    unmark: Callable[[], object] | None = None
    line: Line = field(default_factory=Line)

    @property
    def payload(self) -> bytes:
        """The JSON that its handler gets. Raises Misfit when there is none."""
        if self.misfit:
            raise Misfit(self.misfit)
        return self.mapped.payload if self.mapped else self.delivery.message.body

    @property
    def headers(self) -> Mapping[str, Header]:
        """The headers that its handler sees."""
        return self.mapped.headers if self.mapped else self.envelope.headers

    @property
    def attempt(self) -> Started:
        """The attempt of a work that was begun."""
        if self.started is None:
            raise AssertionError(f"{self.envelope.key}: not begun")
        return self.started

    def overrule(self) -> None:
        """Its end is decided while its handler runs: what the handler still does counts for nothing, and its transaction is gone at once.

        An async handler is cancelled. A sync one can't be: it goes on, and its session raises.
        """
        self.fenced = True
        for act in (self.unmark, self.line.cut, self.cancel):
            if act is not None:
                act()

    def __str__(self) -> str:
        return f"{self.envelope.type} {self.envelope.key}"


def claim_of(work: Work, *, ahead: bool = False) -> Claim:
    """Ask the ledger to begin `work`; `ahead`: behind another job."""
    handler = work.handler
    return Claim(
        message=work.delivery.message,
        envelope=work.envelope,
        queue=work.delivery.queue,
        group=handler.group,
        digest=work.digest,
        max_attempts=handler.max_attempts,
        ahead=ahead,
        ordered=handler.queue.ordered,
        back=handler.queue.back_to(work.delivery.queue),
        redeliveries=work.delivery.attempts,
    )


class Running:
    """The attempts whose handlers run now, each with its lane.

    Whoever takes one out decides how it ended: its lane, its deadline, its lost lease, or the stop.

    A dict by identity: adding and removing are atomic, so no lock is held.
    """

    def __init__(self) -> None:
        self._works: dict[Work, Lane] = {}

    def add(self, work: Work, lane: Lane) -> None:
        """The handler starts."""
        self._works[work] = lane

    def take(self, work: Work) -> bool:
        """Take it out; False when somebody else did: then its outcome is decided already."""
        return self._works.pop(work, None) is not None

    def snapshot(self) -> list[tuple[Work, Lane]]:
        """Those that run at this moment."""
        return list(self._works.items())

    def __len__(self) -> int:
        return len(self._works)
