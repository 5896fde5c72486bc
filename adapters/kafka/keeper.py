"""The thread of a feed: one client after another, each replaced when it fails, and what keeps them from working told meanwhile."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from .faults import DENIED, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .desk import Desk

__all__ = ["Keeper"]

_log = logging.getLogger("postroom.kafka")

OUTAGE = 1.0
"""Seconds until a client that has failed is replaced."""
SERVERS = "servers"
_TAKEN = KafkaError(KafkaError.FENCED_INSTANCE_ID).str()


class Keeper:
    """Runs `serve`, the life of one client, again and again until `stop`; `start`, `stop` and `wait` are for the consumer.

    A client whose `group.instance.id` another process has taken is not replaced: a new one would take it back, and so on.
    """

    def __init__(self, config: Mapping[str, Any], desk: Desk, serve: Callable[[], None]) -> None:
        self.group = str(config["group.id"])
        self.us = f"group {self.group!r}"
        """The group's name among the places of troubles, and for people."""
        self.stopping = threading.Event()
        self.joined = threading.Event()
        """Set once the group has given this member its part, as far as that can be known."""
        self._servers = str(config["bootstrap.servers"])
        self._desk = desk
        self._serve = serve
        self._thread = threading.Thread(target=self._run, name=f"postroom-kafka-{self.group}", daemon=True)

    def start(self) -> None:
        """Begin: join the group."""
        self._thread.start()

    def stop(self) -> None:
        """End soon, with all that is settled told to the broker."""
        self.stopping.set()
        self._desk.wake()

    def wait(self, patience: float) -> None:
        """Wait for the end of the thread."""
        self._thread.join(patience)

    def tell(self, key: str, error: KafkaError, place: str) -> None:
        """Once to the log, and to each `receive` until it is `over`."""
        self._desk.tell(key, translated(error, place))
        if error.code() in DENIED:
            self.joined.set()  # more is not to be known by waiting

    def over(self, *keys: str) -> None:
        """What was told of these is so no more."""
        with self._desk.changed:
            for key in keys:
                self._desk.troubles.pop(key, None)

    def on_error(self, error: KafkaError) -> None:
        """For the client's `error_cb`: most of what it says passes by itself."""
        if error.code() in DENIED or error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
            self.tell(SERVERS, error, self._servers)

    @property
    def is_cut_off(self) -> bool:
        """Whether the servers were out of reach when they were last heard of."""
        return SERVERS in self._desk.troubles

    def _run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._serve()
            except KafkaException as failure:  # what the client can't recover from; a new one may
                self._fail(failure.args[0])
            except Exception as error:  # noqa: BLE001 - a thread that ends silently is a deaf worker
                _log.exception("%s: its client is replaced", self.us)
                self._fail(KafkaError(KafkaError._FAIL, repr(error)))  # noqa: SLF001

    def _fail(self, error: KafkaError) -> None:
        self.tell(self.us, error, self.us)
        self.stopping.wait(None if _TAKEN in error.str() else OUTAGE)
