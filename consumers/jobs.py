"""Which function handles which job: what a service's module declares, checked while it is being imported."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from postroom.adapters.errors import ConfigurationError
from postroom.adapters.numbers import flaw, flaws
from postroom.adapters.seam import Queue
from postroom.outbox.tables import MAX_TYPE

from .mapping import Mapper
from .policy import Backoff
from .signature import Signature, read_signature, require_mapper, where

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from .mapping import Function as MapperFunction

__all__ = ["Handler", "Jobs"]

Function = TypeVar("Function", bound="Callable[..., Any]")
MapperT = TypeVar("MapperT", bound="MapperFunction")

_MAX_GROUP = 100  # bytes, the ledger's column


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Handler:
    """One function that handles the jobs of one type for one group."""

    type: str
    queue: Queue
    group: str
    function: Callable[..., Any]
    signature: Signature
    where: str
    """Its file and line."""
    max_attempts: int
    backoff: Backoff
    timeout: float | None
    concurrency: int | None

    def __post_init__(self) -> None:
        """Raise ConfigurationError for options that make no sense."""
        if wrong := flaws(
            _type_flaw(self.type),
            flaw("max_attempts", self.max_attempts, whole=True, least=1),
            flaw("timeout", self.timeout, above=0, unit="seconds") if self.timeout is not None else None,
            flaw("concurrency", self.concurrency, whole=True, least=1) if self.concurrency is not None else None,
            _backoff_flaw(self.backoff),
        ):
            raise ConfigurationError(f"{self.where}: {wrong}")

    @property
    def carriers(self) -> Mapping[str, int]:
        """Where its jobs come from, with weights: of a topic only its own group's."""
        return self.queue.carriers_of(self.group) if self.queue.groups else self.queue.carriers


class Jobs:
    """The handlers of a service. Several modules may fill one `Jobs`; a worker runs all of it, or some of its queues.

    `group` names the service in the ledger: each group does the work of a key once.
    """

    def __init__(self, group: str = "default") -> None:
        if not 0 < len(group.encode()) <= _MAX_GROUP:
            raise ConfigurationError(f"group {group!r} must be 1 to {_MAX_GROUP} bytes")
        self.group = group
        self._handlers: dict[tuple[str, str], Handler] = {}
        self._carriers: dict[str, Handler] = {}
        self._mappers: dict[str, Mapper] = {}
        self._stand_ins: dict[str, Handler] = {}

    def handler(
        self,
        type: str,  # noqa: A002 - the word of the trade
        *,
        queue: str | Queue,
        group: str | None = None,
        max_attempts: int = 5,
        backoff: Backoff = Backoff(),  # noqa: B008 - a frozen value
        timeout: float | None = None,
        concurrency: int | None = None,
    ) -> Callable[[Function], Function]:
        """Make the decorated function the handler of the jobs of `type`: `def f(payload)` or `def f(payload, context)`, sync or async.

        `queue` is where they come from; of a topic, `group` is this service's (needed only when it has several). `timeout` (seconds) ends an
        attempt as failed; `concurrency` limits how many run at once in one process.
        Raises ConfigurationError, with file and line, for a second handler of the type, a queue declared in two ways, an option or a signature
        that can't be served.
        """

        def decorate(function: Function) -> Function:
            frame = inspect.currentframe()
            scope = frame.f_back.f_locals if frame and frame.f_back else {}
            declared = Queue(name=queue) if isinstance(queue, str) else queue
            handler = Handler(
                type=type,
                queue=declared,
                group=_group(declared, group, where(function)) or self.group,
                function=function,
                signature=read_signature(function, scope),
                where=where(function),
                max_attempts=max_attempts,
                backoff=backoff,
                timeout=timeout,
                concurrency=concurrency,
            )
            self._add(handler)
            return function

        return decorate

    def mapper(self, *, queue: str | Queue) -> Callable[[MapperT], MapperT]:
        """Make the decorated function the mapper of the messages that other programs send to `queue`: those without Postroom's own headers.

        It is called with the `Message` and returns the `MappedJob` that it means, or None for what is no job: that is acked, counted and logged. What
        it raises, or what can't be a job, makes a dead letter with the message's own bytes and headers. A retry is mapped again, so it has to return
        the same for the same message. It runs in the thread that receives: it converts, and waits for nothing.
        Raises ConfigurationError, with file and line, for a second mapper of the queue, or a function that takes anything but one message.
        """
        name = queue if isinstance(queue, str) else queue.name

        def decorate(function: MapperT) -> MapperT:
            require_mapper(function)
            if twin := self._mappers.get(name):
                raise ConfigurationError(f"{where(function)}: queue {name!r} has a mapper already, at {twin.where}")
            self._mappers[name] = Mapper(queue=name, function=function, where=where(function))
            return function

        return decorate

    @property
    def mappers(self) -> Collection[Mapper]:
        """All mappers, in the order of their declaration."""
        return self._mappers.values()

    def mapper_of(self, carrier: str) -> Mapper | None:
        """Return the mapper for what other programs have sent to `carrier`."""
        handler = self._carriers.get(carrier)
        return self._mappers.get(handler.queue.name) if handler else None

    @property
    def handlers(self) -> Collection[Handler]:
        """All handlers, in the order of their declaration."""
        return self._handlers.values()

    @property
    def queues(self) -> Mapping[str, Queue]:
        """All declared queues and topics, by name: what `Adapter.ensure` wants."""
        return {handler.queue.name: handler.queue for handler in self.handlers}

    def carriers(self, only: Collection[str] = ()) -> Mapping[str, int]:
        """What to subscribe to, with weights: everything, or what is named in `only` (queues, topics or carriers).

        Raises ConfigurationError for a name that no handler has.
        """
        names = {name for carrier, handler in self._carriers.items() for name in (carrier, handler.queue.name)}
        if unknown := set(only) - names:
            raise ConfigurationError(f"no handler has the queue {', '.join(sorted(unknown))}; there are: {', '.join(sorted(self.queues))}")
        wanted = set(only) or names
        return {carrier: handler.carriers[carrier] for carrier, handler in self._carriers.items() if wanted & {carrier, handler.queue.name}}

    def find(self, carrier: str, type: str) -> Handler | None:  # noqa: A002 - the word of the trade
        """Return the handler for a job of `type` that came from `carrier`: the type decides, within the carrier's group."""
        return self._handlers.get((self._carriers[carrier].group, type)) if carrier in self._carriers else None

    def stand_in(self, carrier: str) -> Handler:
        """Return what takes the jobs from `carrier` that no handler here is for, as far as a queue and a group are needed to give them up."""
        served = self._carriers[carrier]
        return self._stand_ins.setdefault(carrier, replace(served, timeout=None, concurrency=None))

    def queue_of(self, type: str) -> Queue | None:  # noqa: A002 - the word of the trade
        """Return the queue or topic that jobs of `type` go to, as far as these handlers tell without ambiguity."""
        found = {handler.queue.name: handler.queue for handler in self.handlers if handler.type == type}
        return next(iter(found.values())) if len(found) == 1 else None

    def _add(self, handler: Handler) -> None:
        twin = self._handlers.get((handler.group, handler.type))
        if twin:
            raise ConfigurationError(f"{handler.where}: {handler.type!r} has a handler already, at {twin.where}")
        for other in self.handlers:
            if set(other.carriers) & set(handler.carriers) and other.queue != handler.queue:
                raise ConfigurationError(f"{handler.where}: queue {handler.queue.name!r} is declared differently at {other.where}; share one Queue")
        self._handlers[handler.group, handler.type] = handler
        self._carriers |= dict.fromkeys(handler.carriers, handler)


def _type_flaw(value: object) -> str | None:
    fits = isinstance(value, str) and 0 < len(value.encode()) <= MAX_TYPE
    return None if fits else f"type must be text of 1 to {MAX_TYPE} bytes, not {value!r}"


def _backoff_flaw(value: object) -> str | None:
    return None if isinstance(value, Backoff) else f"backoff must be a Backoff(first=..., cap=...), not {value!r}"


def _group(queue: Queue, group: str | None, place: str) -> str | None:
    """The group of a topic that a handler works for; None for a plain queue."""
    if group is None and len(queue.groups) < 2:  # noqa: PLR2004 - nothing to choose
        return queue.groups[0] if queue.groups else None
    if group not in queue.groups:
        choice = f"one of {', '.join(queue.groups)}" if queue.groups else "of a topic: queue=Queue(name=..., groups=(...))"
        raise ConfigurationError(f"{place}: group {group!r} with queue {queue.name!r}: a group is {choice}")
    return group
