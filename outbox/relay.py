"""The relay: from the outbox to the broker, as a call, as a loop, or as a thread of its own."""

from __future__ import annotations

import os
import random
import secrets
import socket
import threading
import time
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from postroom.adapters.errors import PostroomError, Unavailable
from postroom.adapters.sql import schema
from postroom.adapters.sql.engine import prepare, renew_after_fork
from postroom.adapters.sql.wakeup import Wakeup

from .health import HealthRecord
from .housekeeping import Housekeeping
from .marks import RoundResult
from .options import RelayOptions
from .pace import Pace
from .rounds import Rounds
from .tables import CHANNEL, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from sqlalchemy import Engine

    from postroom.adapters.seam import Adapter

    from .health import Health

__all__ = ["Relay", "Stop"]

GLANCE = 0.2
"""While it waits, a relay looks this often (seconds) whether it has been told to stop."""
DRAIN_TRIES = 5
"""So many rounds in a row without any answer end a drain."""


class Stop(Protocol):
    """What tells a relay to stop: a `threading.Event`, or anything with its `is_set`."""

    def is_set(self) -> bool:
        """Whether it is time to stop."""


class Relay:
    """Sends what is due in the outbox of `engine` to the broker of `adapter`. Any number of relays may share one outbox.

    Run it as a thread of the caller's own process (`start` and `stop`, or `with relay:`), as the whole of a thread (`run`), until all is
    sent (`drain`), or for one round; one of these at a time. After a fork the child has a relay that was never started.
    `name`, at most 64 characters, is no other relay's, ever; by it `lanes.give_up` frees what this one holds when its process is dead.
    `clock` measures intervals on this host; what is due, and whose lease has run out, is the database's to say.
    """

    _stop: threading.Event
    _thread: threading.Thread | None
    _wakeup: Wakeup | None

    def __init__(
        self,
        engine: Engine,
        adapter: Adapter,
        *,
        options: RelayOptions | None = None,
        name: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._engine = prepare(engine)
        renew_after_fork(engine)
        self._adapter = adapter
        self._options = options or RelayOptions()
        self._clock = clock
        self._sleep = sleep
        self._rng = rng or random.Random()  # noqa: S311 - to spread retries, not to keep a secret
        self._begin_life(name)

    def run_once(self) -> RoundResult:
        """Do one round, and keep no lanes afterwards.

        Blocks for some short transactions and one `publish`. Raises Unavailable when the database is away; that the broker is, is a result.
        """
        self._mind_the_fork()
        with self._leaving(), self._heart(threading.Event()):
            return self._rounds.round(_for_ever)

    def drain(self, stop: Stop | None = None, progress: Callable[[RoundResult], None] = lambda _: None) -> RoundResult:
        """Send until nothing is due in any lane, or `stop` is set; return the sum of all rounds. `progress` hears of each.

        Waits while another relay holds lanes with due rows. Raises Unavailable when the database is away, or the broker for 5 rounds in a row;
        SchemaDrift before anything is sent when its tables are not as they should be.
        Rows that the broker would not take now are not due before their next try: the result counts them as `held`.
        """
        self._mind_the_fork()
        stop = stop or threading.Event()
        schema.require(self._engine, TABLES)
        with self._leaving(), self._heart(stop):
            return self._drain(stop, progress)

    def run(self, stop: Stop) -> None:
        """Go on until `stop` is set, then give the lanes back and return: at the latest when the broker has answered what is in flight.

        An absent database or broker is waited for, and shows in `health`. Only what waiting can't mend (access denied, tables that are not as
        they should be) raises, at once.
        """
        self._mind_the_fork()
        with self._leaving(), self._heart(stop):
            self._refuse_the_hopeless()
            self._wakeup = Wakeup(self._engine, CHANNEL)
            with closing(self._wakeup):
                while not stop.is_set():
                    self._wait(stop, self._attempt(stop))
        self._health.stopped()

    def start(self) -> None:
        """Run in a daemon thread of this process; does nothing when it runs already. Raises Unavailable while an earlier `stop` is not through."""
        self._mind_the_fork()
        if self._thread is not None and self._thread.is_alive():
            if self._stop.is_set():
                raise Unavailable("the relay is still stopping: the broker has not answered yet")
            return
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(self._stop,), name="postroom-relay", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> bool:
        """Tell the thread to stop and wait up to `timeout` seconds; return whether it has ended.

        When it has not, the broker still owes an answer: the thread ends with it, and its lanes go to other relays when the lease runs out.
        """
        self._mind_the_fork()
        self._stop.set()
        self.wake()
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    def wake(self) -> None:
        """Look for due rows now instead of at the next poll. Any thread may call it."""
        if self._wakeup is not None:
            self._wakeup.wake()

    def health(self) -> Health:
        """How it is. Never blocks; any thread may call it."""
        self._mind_the_fork()
        return self._health.now

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _begin_life(self, name: str | None = None) -> None:
        """Set up what belongs to one process; a forked child can't have the name of its parent."""
        self._pid = os.getpid()
        self.name = name or f"{socket.gethostname()[:32]}:{self._pid}:{secrets.token_hex(4)}"
        self._rounds = Rounds(self._engine, self._adapter, self._options, name=self.name, clock=self._clock, rng=self._rng)
        self._chores = Housekeeping(self._engine, self._adapter, self._options, clock=self._clock)
        self._pace = Pace(self._options, self._rng)
        self._health = HealthRecord(self.name)
        self._wakeup = None
        self._stop = threading.Event()
        self._thread = None

    def _mind_the_fork(self) -> None:
        if os.getpid() != self._pid:
            self._begin_life()

    def _serve(self, stop: Stop) -> None:
        while not stop.is_set():
            try:
                self.run(stop)
            except Exception as error:  # noqa: BLE001 - a thread that nobody watches must not die
                self._health.failed(error)
                self._wait(stop, self._pace.failed())
        self._health.stopped()

    def _drain(self, stop: Stop, progress: Callable[[RoundResult], None]) -> RoundResult:
        total, pace = RoundResult(), Pace(self._options, self._rng)
        while not stop.is_set():
            result = self._rounds.round(lambda: not stop.is_set())
            progress(result)
            total += result
            pause = pace.after(result)
            if pace.failures >= DRAIN_TRIES:
                raise Unavailable(result.outage)
            if not (result.worked or result.outage or self._rounds.anything_due()):
                break
            self._sleep(pause)
        return total

    def _refuse_the_hopeless(self) -> None:
        try:
            schema.require(self._engine, TABLES)
        except Unavailable as error:
            if not error.retryable:
                raise

    def _attempt(self, stop: Stop) -> float:
        """Do one round whatever happens; return the pause to make after it."""
        try:
            result = self._rounds.round(lambda: not stop.is_set())
        except Exception as error:  # noqa: BLE001 - a relay goes on; its health tells
            self._health.failed(error)
            return self._pace.failed()
        pause = self._pace.after(result)
        if result.outage:
            self._health.failed(Unavailable(result.outage))
            return pause
        self._health.well()
        return min(pause, self._options.poll_min) if self._chores.step() else pause

    def _wait(self, stop: Stop, seconds: float) -> None:
        while seconds > 0 and not stop.is_set() and not self._doze(min(seconds, GLANCE)):
            seconds -= GLANCE

    def _doze(self, seconds: float) -> bool:
        """Return early, and true, for new rows; but not during an outage, which they don't end."""
        if self._wakeup is None or self._pace.failures:
            self._sleep(seconds)
            return False
        return self._wakeup.wait(seconds)

    @contextmanager
    def _heart(self, stop: Stop) -> Iterator[None]:
        """Keep the lanes from a thread of its own, however long the broker takes to answer; no longer when the relay is to stop."""
        ended = threading.Event()
        heart = threading.Thread(target=self._beat, args=(ended, stop), name="postroom-relay-heart", daemon=True)
        heart.start()
        try:
            yield
        finally:
            ended.set()
            heart.join()

    def _beat(self, ended: threading.Event, stop: Stop) -> None:
        while not ended.wait(self._options.lease / 3) and not stop.is_set():
            with suppress(PostroomError):  # the round itself meets the same trouble, and the fence guards what is lost
                self._rounds.renew()

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        try:
            yield
        finally:
            with suppress(PostroomError):  # else the lease runs out
                self._rounds.leave()


def _for_ever() -> bool:
    return True
