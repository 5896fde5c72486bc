"""The story of order 4711, step by step, with real processes: what happens is done first, and told from what is then there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from postroom.adapters.errors import PostroomError
from postroom.adapters.sql.schema import create
from postroom.consumers.status import status_of
from postroom.outbox import Outbox
from postroom.outbox.relay import Relay

from .app import QUEUE_VARIABLE, application
from .doomed import ABOUT_TO_ACK
from .fates import fate_on
from .shop import Base, Order, Receipt, SentEmail

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy import Engine

    from postroom.adapters.seam import Adapter
    from postroom.consumers.status import JobStatus

__all__ = ["APPLICATION", "Story", "queue_for"]

APPLICATION = "postroom.consumers.demo.app:jobs"
FIRST_ORDER = 4711
PATIENCE = 120.0
"""How long (seconds) a worker may take before the story is given up."""


def queue_for(adapter: Adapter) -> str:
    """The queue of a story: `emails` in a database that was named for it, one that nobody else has on a broker."""
    return "emails" if adapter.capabilities.clock_leases else f"demo-emails-{uuid.uuid4().hex[:6]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Tells itself through `tell(heading)` and `show(statuses)`; `database` and `broker` are the URLs behind `engine` and `adapter`.

    `queue` is where its one job goes: see `queue_for`.
    """

    database: str
    broker: str
    engine: Engine
    adapter: Adapter
    queue: str
    tell: Callable[[str], None]
    show: Callable[[JobStatus, Mapping[str, int]], None]

    def run(self) -> int:
        """Tell it; return the number of the order. Takes about 10 s, on Kafka 20. Raises PostroomError when it does not end as it should."""
        order = self._open_shop()
        self._checkout(order)
        self._relay(order)
        self._crash(order)
        self._recover(order)
        if (sent := self._emails(order)) != 1:
            raise PostroomError(f"order {order} has {sent} emails, and should have one: please report this")
        self.tell(
            "One order, one worker killed at the worst moment, one email. The broker has delivered twice, as\n"
            "at-least-once must; the effect came once, because the email's row and `done` are one transaction.\n"
            "A mail server can't be part of it: there, pass context.idempotency_key on."
        )
        return order

    def _open_shop(self) -> int:
        create(self.engine)
        Base.metadata.create_all(self.engine)
        self.adapter.ensure(list(application(self.queue).queues.values()))
        with Session(self.engine) as session:
            newest = session.scalar(select(func.max(Order.id)).where(Order.id >= FIRST_ORDER))
        return FIRST_ORDER if newest is None else newest + 1

    def _checkout(self, order: int) -> None:
        with Session(self.engine) as session, session.begin():
            session.add(Order(id=order))
            Outbox(queue=self.queue).enqueue(session, "send-receipt", Receipt(order), key=f"order-{order}")
        self.tell(f"The checkout commits order {order} and its job `send-receipt` in one transaction.")
        self._show(order)

    def _relay(self, order: int) -> None:
        Relay(self.engine, self.adapter).drain()
        self.tell("The relay sends the job to the broker, and notes so when the broker has confirmed it.")
        self._show(order)

    def _crash(self, order: int) -> None:
        command = [sys.executable, "-P", "-m", "postroom.consumers.demo.doomed"]
        with subprocess.Popen(command, env=self._environment(), stdout=subprocess.PIPE, text=True) as worker:  # noqa: S603 - our own module
            line = worker.stdout.readline() if worker.stdout else ""
            worker.kill()
        if not line.startswith(ABOUT_TO_ACK):
            raise PostroomError("the first worker did not do its work; what it said is above")
        self._wait_until_missed()
        self.tell(
            f"A worker (process {worker.pid}) sends the email: a row in shop_sent_emails, committed together with\n"
            f"`done`. Then it is killed (SIGKILL) before it can acknowledge: {fate_on(self.adapter.capabilities).killed}."
        )
        self._show(order)

    def _wait_until_missed(self) -> None:
        """RabbitMQ takes a moment to see that a connection has gone, and counts the job again then."""
        late = time.monotonic() + PATIENCE
        while not sum(self._on_the_broker().values()) and time.monotonic() < late:
            time.sleep(0.05)

    def _recover(self, order: int) -> None:
        began = time.monotonic()
        command = [sys.executable, "-P", "-m", "postroom.consumers.cli", "work", APPLICATION, "--drain", "--processes", "1"]
        worker = subprocess.run(command, env=self._environment(), capture_output=True, text=True, timeout=PATIENCE, check=False)  # noqa: S603 - our own
        if worker.returncode:
            raise PostroomError(f"the second worker ended with exit code {worker.returncode}:\n{worker.stderr}")
        self.tell(
            f"{fate_on(self.adapter.capabilities).missed}\n"
            f"The ledger says that order {order} is done: it acknowledges, and runs nothing.\n"
            f"That took {time.monotonic() - began:.1f} s, with the start of the worker."
        )
        self._show(order)

    def _environment(self) -> dict[str, str]:
        """Where the workers find both URLs: not on their command line, which every user of the machine can read."""
        return {**os.environ, "POSTROOM_DATABASE": self.database, "POSTROOM_BROKER": self.broker, QUEUE_VARIABLE: self.queue}

    def _emails(self, order: int) -> int:
        with Session(self.engine) as session:
            return session.scalar(select(func.count()).where(SentEmail.order_id == order)) or 0

    def _show(self, order: int) -> None:
        (status,) = status_of(self.engine, f"order-{order}")
        self.show(status, {"emails sent": self._emails(order), **self._on_the_broker()})

    def _on_the_broker(self) -> Mapping[str, int]:
        """A broker that does not lease by the clock tells nobody what others' consumers hold."""
        depth = self.adapter.depth(self.queue)
        if self.adapter.capabilities.clock_leases:
            return {"waiting on the broker": depth["pending"], "held by a worker": depth["running"]}
        return {"on the broker, not acknowledged": depth["pending"] + depth["running"]}
