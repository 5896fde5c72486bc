"""The seam: what a backend must do, and nothing a backend may decide.

An adapter is thin and batch-shaped. It never retries, never sleeps for policy, never counts attempts for the caller:
attempts, backoff and order across retries are decided once, above it. Modelled on go-cloud's `pubsub/driver`.
Each backend is judged by `postroom.adapters.conformance`, which reads the same `Capabilities` as the runtime does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from .errors import ConfigurationError
from .numbers import flaw, flaws

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = [
    "Adapter",
    "Capabilities",
    "Consumer",
    "DeadLetter",
    "DeadLetters",
    "Delivery",
    "Header",
    "Hold",
    "Message",
    "Outcome",
    "Queue",
    "Verdict",
    "retries_of",
]

Header = str | int | bool | bytes | None
"""What travels on every broker: text, 64-bit integers, booleans, bytes, nothing."""

_QUEUE_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue as declared: the same value on the publishing and on the consuming side.

    `ordered` keeps jobs of one ordering key in their order: one in flight per key; a retry or a dead letter holds that key, and only it.
    `lease` (seconds) is how long a delivery stays hidden when nobody settles or extends it, on backends that lease by the clock.
    `groups` makes it a topic: each group gets every message, in a queue of its own named `<name>.<group>`. A list or a set will do, too.
    `priorities` splits it into weighted queues `<name>.<priority>`: {"high": 4, "low": 1} takes four urgent jobs for each other one.
    `dead_letter` names the dead-letter queue, by default `<carrier>.dlq`.
    `foreign` says that another program declares and fills it: it must be there, and nothing of it is ever declared, changed or published to.
    Postroom's own messages about its jobs, retries and replays, travel in a second carrier, `<carrier>.retry`. In SQL and memory, where nobody
    else could have made it, it is declared like any other.
    """

    name: str
    ordered: bool = False
    lease: float = 30.0
    groups: tuple[str, ...] = ()
    priorities: Mapping[str, int] = field(default_factory=dict)
    dead_letter: str = ""
    foreign: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigurationError for a name, a lease, groups or priorities that no backend could carry."""
        object.__setattr__(self, "groups", _names(self.name, self.groups))
        _require_weights(self.name, self.priorities)
        for name in (self.name, *self.carriers, *([self.dead_letter] if self.dead_letter else [])):
            if not _is_name(name):
                raise ConfigurationError(f"queue name {name!r}: use 1 to 200 of the characters A-Z a-z 0-9 . _ -")
        weights = [flaw(f"the weight of priority {name!r}", weight, whole=True, least=1) for name, weight in self.priorities.items()]
        if wrong := flaws(flaw("lease", self.lease, above=0, unit="seconds"), *weights):
            raise ConfigurationError(f"queue {self.name!r}: {wrong}")
        if itself := next((name for name in (self.name, *self.carriers) if name in map(self.dead_letter_of, self.carriers)), None):
            raise ConfigurationError(f"queue {self.name!r}: its dead letters can't go to {itself!r}, where its jobs are: they would come round again")
        if self.priorities and (self.groups or self.ordered):
            raise ConfigurationError(f"queue {self.name!r}: priorities can't be kept together with an order or with groups")
        if self.priorities and self.foreign:
            raise ConfigurationError(f"queue {self.name!r}: a foreign queue is what its owner has made it, and can't be split by priorities")

    @property
    def carriers(self) -> Mapping[str, int]:
        """The queues that really hold messages, with their weights: this one, or one for each group or priority."""
        held = self._held
        return {**held, **{retries_of(name): weight for name, weight in held.items()}} if self.foreign else held

    @property
    def foreign_carriers(self) -> tuple[str, ...]:
        """Those of its carriers that another program has made."""
        return tuple(self._held) if self.foreign else ()

    def carriers_of(self, group: str) -> Mapping[str, int]:
        """Those carriers of a topic that are for one of its groups."""
        name = f"{self.name}.{group}"
        return {carrier: weight for carrier, weight in self.carriers.items() if carrier in {name, retries_of(name)}}

    def dead_letter_of(self, carrier: str) -> str:
        """The name of a carrier's dead-letter queue."""
        return self.dead_letter or f"{carrier}.dlq"

    def group_of(self, carrier: str) -> str | None:
        """The group that a carrier gets a topic's messages for; None when it gets none but its own."""
        return next((group for group in self.groups if carrier == f"{self.name}.{group}"), None)

    def back_to(self, carrier: str) -> str:
        """The carrier where a message that came from this one is sent to come again: itself, unless it is foreign."""
        return retries_of(carrier) if carrier in self.foreign_carriers else carrier

    @property
    def _held(self) -> Mapping[str, int]:
        parts = self.priorities or dict.fromkeys(self.groups, 1)
        return {f"{self.name}.{part}": weight for part, weight in parts.items()} or {self.name: 1}


def retries_of(carrier: str) -> str:
    """The carrier of Postroom's own messages for a foreign one."""
    return f"{carrier}.retry"


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _QUEUE_NAME.fullmatch(name) is not None


def _require_weights(queue: str, priorities: object) -> None:
    if not isinstance(priorities, Mapping):
        raise ConfigurationError(f"queue {queue!r}: priorities are names with weights, like {{'high': 4, 'low': 1}}, not {priorities!r}")


def _names(queue: str, groups: object) -> tuple[str, ...]:
    """The groups of a queue as a tuple, in the same order in every process; a bare str is none, though it is an iterable of str."""
    given = groups if isinstance(groups, Iterable) and not isinstance(groups, str | bytes) else (None,)
    names = tuple(sorted(given, key=str) if isinstance(given, AbstractSet) else given)
    if not all(isinstance(name, str) for name in names):
        raise ConfigurationError(f"queue {queue!r}: groups are a tuple of names, like ('emails', 'stock'), not {groups!r}")
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message as it travels: bytes and headers are opaque to an adapter.

    `id` is the same in every copy of the message. `ordering_key` None means the message has no order to keep.
    `delay` (seconds) is honoured only where `Capabilities.native_delay`.
    `max_attempts` None means the backend itself sets no limit (the ledger above does).
    `properties` are what a broker tells of another program's message beside its headers, as plain JSON values; they are not published. RabbitMQ:
    `exchange`, `routing_key`, the message's AMQP properties by their names (`content_type`, `correlation_id`, `type` ...; `timestamp` in seconds),
    and as `headers` those of a type that no other broker has (tables, lists, floats). Kafka: `topic`, `partition`, `offset`, `timestamp` (seconds);
    the record's key is the `ordering_key`. Empty for a message that Postroom itself has published.
    """

    id: str
    queue: str
    body: bytes
    headers: Mapping[str, Header] = field(default_factory=dict)
    ordering_key: str | None = None
    delay: float = 0.0
    max_attempts: int | None = None
    properties: Mapping[str, Any] = field(default_factory=dict, compare=False)


class Verdict(Enum):
    """What became of one published message."""

    CONFIRMED = "confirmed"
    """The backend has it durably, and said so. (A duplicate of a message id it still holds may be confirmed without a second copy.)"""
    REFUSED = "refused"
    """It can never be accepted (too large, forbidden): publishing it again is useless."""
    BUSY = "busy"
    """The backend answered no for now (no such queue yet, full, nack): publish this message again later."""
    UNKNOWN = "unknown"
    """No answer (connection lost, timeout): it may or may not have arrived; publish it again with the same id."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict on one message, with a reason fit for an operator's eyes."""

    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One message handed to one consumer, until it is settled.

    `queue` is the carrier it came from. `token` is the receipt: opaque, fresh at each delivery, it fences every settle.
    `attempts` is the backend's own count of earlier attempts, 0 where it has none: a hint, never the authority.
    """

    message: Message
    queue: str
    token: object
    attempts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that was given up, with its bytes and headers as they were delivered. `id` names it within its queue."""

    id: str
    message: Message
    queue: str
    reason: str
    attempts: int
    died_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend really does. The runtime and the conformance suite both read it; neither asks for a backend's name."""

    name: str
    durable: bool
    """Messages survive a restart of the process (or of the server)."""
    shared: bool
    """Other processes see the same queues."""
    native_delay: bool
    """The backend itself can hold a job back: `Message.delay`, `Consumer.fail`, `release(delay=...)` work."""
    atomic_publish: bool
    """A batch is confirmed whole or not at all (but for refused messages), so it keeps the order of its keys."""
    clock_leases: bool
    """An unsettled delivery comes back when its lease runs out, and `extend` lengthens it; else when its consumer's connection dies."""
    counts_attempts: bool
    """`Delivery.attempts` is meaningful."""
    fifo: bool = True
    """One consumer of one queue gets jobs oldest first, and a released one at its old place; else order is kept within a key at most."""
    fan_out: bool = True
    """Topics with groups."""
    ordered: bool = True
    """Queues declared ordered keep the order of each key."""
    competing: bool = True
    """A job that one consumer has no room for goes to another; else it may wait for the one whose partition or batch it is in (Kafka)."""
    rolling: bool = True
    """A settled delivery makes room for another at once; else all that were fetched together are settled first (Kafka's share groups)."""
    lists: bool = True
    """`carriers()` tells of all that were declared, by whomever; else of those that this adapter has declared or was asked about (RabbitMQ)."""
    single: str = ""
    """The option of the URL by which only one process can consume, because it names one member of a group; empty: any number can."""


@dataclass(frozen=True, slots=True)
class Hold:
    """How long (seconds) a consumer can hold one delivery, whatever it does; `why` tells an operator what decides that, and how to change it.

    `assumed`: the backend does not tell, so it is what the URL says of it, or its default.
    """

    seconds: float
    why: str
    assumed: bool = False


class Consumer(Protocol):
    """An open subscription. Settle methods may be called from any thread; `receive` from one thread at a time.

    Every settle method takes deliveries of this consumer, in one batch. A delivery whose token no longer holds is not touched;
    the others are settled, then `LeaseLost` names the lost ones. `Unavailable` means none or some are settled: the lease decides.
    """

    def receive(self, limit: int, timeout: float) -> Sequence[Delivery]:
        """Return up to `limit` deliveries as soon as there is one; none when `timeout` seconds have passed, which is not an error.

        Raises Unavailable when none can come. While some can, of other carriers, only `troubles` and the log tell of those that can't be read.
        """

    @property
    def troubles(self) -> Sequence[str]:
        """What keeps the jobs of a carrier from coming, as far as is known by now, each with its name; none while all are consumed. Never blocks."""

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Done: they are never delivered again."""

    def fail(self, delivery: Delivery, error: str, delay: float = 0.0) -> None:
        """An attempt failed: pending again after `delay` seconds, or dead when the message's own max_attempts is reached.

        Only where `native_delay`; elsewhere a caller publishes the retry and acks this delivery, and this raises ConfigurationError.
        """

    def release(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> None:
        """Hand them back un-run: attempts unchanged, at their old place in the queue.

        With a `delay` (seconds) they are not delivered before it has passed; without `native_delay` that raises ConfigurationError.
        """

    def dead_letter(self, delivery: Delivery, reason: str) -> None:
        """Give it up: it is in the dead-letter queue, durably, before it leaves this one.

        The letter counts one attempt more than the delivery: who counts better than the backend hands in a delivery with that number.
        """

    def extend(self, deliveries: Sequence[Delivery], lease: float) -> None:
        """Hold them for `lease` seconds from now. Does nothing where leases are not by the clock."""

    def close(self) -> None:
        """Stop receiving, hand back what is not settled, free the resources. May be called twice."""


class DeadLetters(Protocol):
    """The dead letters of one queue (carrier). All methods are safe to repeat."""

    def list(self, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        """Return up to `limit` letters, oldest first, behind the one with id `after`. Consumes nothing."""

    def take(self, ids: Sequence[str]) -> Sequence[DeadLetter]:
        """Remove these and return them; those not there (any more) are left out."""

    def put_back(self, ids: Sequence[str], headers: Mapping[str, Mapping[str, Header]] | None = None) -> Sequence[str]:
        """Publish these to their queue again, attempts 0; return the ids that were put back. `headers` are, by id, what is laid over their own.

        Each is in its queue, durably, before it leaves the dead letters. Where a part of them can be put back, it is; for the others it
        raises Unavailable when they are all that is asked for.
        """


class Adapter(Protocol):
    """One connected backend. Thread-safe. Construct it through `postroom.adapters.connect(url)`."""

    capabilities: Capabilities

    def ensure(self, queues: Sequence[Queue], *, passive: bool = False) -> None:
        """Declare queues with all they need; idempotent.

        Raises TopologyMismatch when one exists with other arguments (with `passive` also when one is missing), and changes nothing then.
        Raises ConfigurationError when two of them contradict each other (see `declaring`), and asks no server then.
        """

    def prepare(self, queues: Collection[str], *, group: str, passive: bool = False) -> Mapping[str, Hold]:
        """Set up what the backend keeps of a group that will consume these carriers, which are declared; idempotent.

        With `passive` only compare: raises TopologyMismatch that names what differs, and changes nothing.

        Return the carriers whose deliveries can be held for a limited time only, which `extend` can't lengthen: afterwards a delivery goes to
        others, uncharged, though its handler still runs.
        """

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Publish in order; return one outcome for each message, in order. Blocks until all are known (each backend states its bound).

        Never raises for a message or a lost connection: that is an outcome. A message to a queue nobody declared is BUSY.
        A `delay` without `native_delay` is the caller's mistake: ConfigurationError, and nothing is published.
        """

    def consume(self, queues: Mapping[str, int], *, group: str, prefetch: int, name: str) -> Consumer:
        """Subscribe to carriers, each with its weight (a positive integer: the share of the deliveries when all have work).

        At most `prefetch` deliveries are unsettled at a time. `name` identifies the holder (see `abandon`).
        Raises ConfigurationError when a queue is not declared, when there is none, and for a prefetch or a weight below 1.
        """

    def dead_letters(self, queue: str) -> DeadLetters:
        """The dead letters of one carrier."""

    def abandon(self, name: str) -> int:
        """Hand back, uncharged, all that the consumer `name` holds: its process is known to be dead. Return how many."""

    def carriers(self) -> Sequence[str]:
        """The names of all declared carriers, sorted, as far as this backend can list them; a broker that can't gives those ensured here."""

    def depth(self, queue: str) -> Mapping[str, int]:
        """Count the jobs of a carrier by status: at least `pending`, `running` and `failed`; all 0 where nobody declared it.

        Where a failed job holds the later ones of its ordering key on the backend itself: when there are such, `blocked` of the pending ones.
        """

    def tidy(self, *, older_than: float, limit: int = 1000) -> int:
        """Remove up to `limit` jobs that were done more than `older_than` seconds ago; return how many. Dead letters stay. Brokers keep none: 0."""

    def close(self) -> None:
        """Close every connection. May be called twice."""
