"""A subscription to carriers of the SQL broker."""

from __future__ import annotations

import os
import threading
import time
import uuid
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, cast

from sqlalchemy.exc import IntegrityError

from postroom.adapters.consuming import require_held, require_usable
from postroom.adapters.errors import Unavailable
from postroom.adapters.seam import Delivery
from postroom.adapters.text import bounded

from .content import message_of
from .engine import reading
from .inserting import CHANNEL
from .settling import Receipt, settle
from .statements import LAPSED, RECLAIM
from .transaction import transact
from .wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sqlalchemy import Connection, Engine, Update

    from postroom.adapters.weights import Turns

    from .dialects import Dialect
    from .topology import Carrier

__all__ = ["SqlConsumer"]

FIRST_POLL, LAST_POLL = 0.01, 0.5
"""How long (seconds) an empty queue is left alone: at first, and at most."""
SWEEP = 0.5
"""How often (seconds) a receiver looks for leases that have run out, of whoever's."""
LARGEST_TAKE = 1000


class SqlConsumer:
    """See `postroom.adapters.seam.Consumer`. A publish in this process wakes `receive` at once, on PostgreSQL one in any process; else it polls."""

    def __init__(
        self,
        engine: Engine,
        dialect: Dialect,
        carriers: Mapping[str, Carrier],
        turns: Turns,
        *,
        prefetch: int,
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._dialect = dialect
        self._carriers = carriers
        self._turns = turns
        self._prefetch = prefetch
        self._name = name
        self._clock = clock
        self._wakeup = Wakeup(engine, CHANNEL, clock=clock)
        self._receiving = threading.RLock()
        self._unsettled: dict[Receipt, Delivery] = {}
        self._pause = FIRST_POLL
        self._swept_at = float("-inf")
        self._pid = os.getpid()
        self._closed = False

    def receive(self, limit: int, timeout: float) -> Sequence[Delivery]:
        """Return what is due, or wait up to `timeout` seconds for it; see `Consumer.receive`."""
        late = self._clock() + timeout
        with self._receiving:
            while True:
                self._require_open()
                taken = self._take(limit)
                self._require_open()  # closed meanwhile: close() hands them back
                self._pause = FIRST_POLL if taken else min(2 * self._pause, LAST_POLL)
                left = late - self._clock()
                if taken or left <= 0:
                    return taken
                self._wakeup.wait(min(left, self._pause))

    @property
    def troubles(self) -> Sequence[str]:
        """None of a single carrier: they are all in one table, and of that `receive` tells."""
        return ()

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """running -> done."""
        self._settle(self._dialect.statements.ack, deliveries)

    def fail(self, delivery: Delivery, error: str, delay: float = 0.0) -> None:
        """running -> pending, or failed on the last attempt."""
        self._settle(self._dialect.statements.fail, [delivery], reason=bounded(error), delay=delay)
        self._wakeup.wake()

    def release(self, deliveries: Sequence[Delivery], delay: float = 0.0) -> None:
        """running -> pending, uncharged."""
        if delay:
            self._settle(self._dialect.statements.defer, deliveries, delay=delay)
        else:
            self._settle(self._dialect.statements.release, deliveries)
        self._wakeup.wake()

    def dead_letter(self, delivery: Delivery, reason: str) -> None:
        """running -> failed."""
        self._settle(self._dialect.statements.dead_letter, [delivery], reason=bounded(reason), attempts=delivery.attempts + 1)

    def extend(self, deliveries: Sequence[Delivery], lease: float) -> None:
        """running -> running."""
        mine, lost = self._sorted(deliveries)
        lost += settle(self._engine, self._dialect.statements, self._dialect.statements.extend, mine, {"lease": lease})
        self._forget(lost)
        require_held(lost)

    def close(self) -> None:
        """Hand back what is not settled. A `receive` that waits in another thread raises Closed."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        self._wakeup.wake()
        with self._receiving, suppress(Unavailable):  # then their leases run out
            settle(self._engine, self._dialect.statements, self._dialect.statements.release, [*self._unsettled.values()], {})
        self._wakeup.close()

    def wake(self) -> None:
        """There is news: have `receive` look again."""
        self._wakeup.wake()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def _take(self, limit: int) -> list[Delivery]:
        self._sweep()
        room = min(limit, self._prefetch - len(self._unsettled), LARGEST_TAKE)
        if room <= 0 or not self._dialect.may_be_due(self._engine, self._carriers):
            return []
        try:
            taken = transact(self._engine, partial(self._claim, room=room))
        except IntegrityError:  # at the same moment another one took a job of the same line: the database allows one
            return []
        self._unsettled.update((cast("Receipt", delivery.token), delivery) for delivery in taken)
        return taken

    def _claim(self, connection: Connection, *, room: int) -> list[Delivery]:
        """Give each carrier its share; what one can't fill goes to the others."""
        taken: list[Delivery] = []
        ready, token = set(self._carriers), uuid.uuid4().hex
        while ready and (left := room - len(taken)):
            shares = self._turns.share(left, ready) if len(ready) > 1 else dict.fromkeys(ready, left)
            for name, share in shares.items():
                found = self._claim_from(connection, self._carriers[name], share, token)
                taken += found
                if len(found) < share:
                    ready.remove(name)
        return taken

    def _claim_from(self, connection: Connection, carrier: Carrier, most: int, token: str) -> list[Delivery]:
        take = self._dialect.takes.in_order if carrier.ordered else self._dialect.takes.plain
        request = {"carrier": carrier.name, "most": most, "receipt": token, "holder": self._name, "lease": carrier.lease}
        published_to = carrier.topic or carrier.name
        return [
            Delivery(message=message_of(row, published_to), queue=carrier.name, token=Receipt(row.seq, token), attempts=row.attempts)
            for row in take(connection, request)
        ]

    def _sweep(self) -> None:
        """Take up again what a holder that vanished has left. A look costs an index probe; only if there is something, a write."""
        if self._clock() - self._swept_at < SWEEP:
            return
        self._swept_at = self._clock()
        if transact(reading(self._engine), lambda connection: connection.scalar(LAPSED)) is not None:
            transact(self._engine, lambda connection: connection.execute(RECLAIM))

    def _settle(self, transition: Update, deliveries: Sequence[Delivery], **values: object) -> None:
        mine, lost = self._sorted(deliveries)
        lost += settle(self._engine, self._dialect.statements, transition, mine, values)
        may_go_on = len(self._unsettled) >= self._prefetch or any(carrier.ordered for carrier in self._carriers.values())
        self._forget(deliveries)
        if may_go_on:
            self._wakeup.wake()
        require_held(lost)

    def _sorted(self, deliveries: Sequence[Delivery]) -> tuple[list[Delivery], list[Delivery]]:
        """Those that are unsettled here, and the others."""
        self._require_open()
        mine = [delivery for delivery in deliveries if delivery.token in self._unsettled]
        return mine, [delivery for delivery in deliveries if delivery.token not in self._unsettled] if len(mine) < len(deliveries) else []

    def _forget(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self._unsettled.pop(cast("Receipt", delivery.token), None)

    def _require_open(self) -> None:
        require_usable(closed=self._closed, pid=self._pid)
