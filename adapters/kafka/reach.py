"""The first contact with a cluster.

To whoever asks librdkafka something it only says that the time is up; why is told to a callback, and to its log. Here the two are put together,
and who has named a wrong port or password is told so within seconds.
"""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from postroom.adapters.errors import AccessDenied, Unavailable

from .config import LIBRARY
from .faults import DENIED
from .process import PerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["UNVERIFIED", "Reach", "quieten"]

SLICE = 0.5
DOWN = 3.0
"""For how long (seconds) all servers must have been out of reach: the first address of a host may be refused where its second is not."""
PATIENCE = 15.0
HUNG_UP = "it closes each connection without a word: does it want TLS or a login (security.protocol)?"
UNVERIFIED = "broker certificate could not be verified, verify that ssl.ca.location is correctly configured"
"""What librdkafka adds by itself to a certificate that it can't verify, unless the handshake is over in one step."""
_WHERE = re.compile(r"^\S+: | \(after \d+ms in state \w+.*$")


class Reach:
    """The admin client of an adapter, and whether its cluster has ever answered. Thread-safe."""

    def __init__(
        self,
        config: Mapping[str, Any],
        servers: str,
        *,
        make: Callable[[dict[str, Any]], AdminClient] = AdminClient,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.admin = PerProcess(lambda: make({**config, "error_cb": self._note}))
        self._servers = servers
        self._clock = clock
        self._reached = False
        self._down = False
        self._reason: KafkaError | None = None

    def require(self) -> None:
        """Return once the cluster has answered: at once, if it ever did. Raises AccessDenied, or Unavailable after 3 s without a server, or 15 s."""
        began = self._clock()
        while not self._reached:
            try:
                self.admin.get().list_topics(timeout=SLICE)
                self._reached = True
            except KafkaException as failure:
                self.admin.get().poll(0)
                self._judge(failure.args[0], self._clock() - began)

    def _judge(self, error: KafkaError, waited: float) -> None:
        reason = self._reason or error
        if reason.code() in DENIED:
            raise AccessDenied(f"Kafka at {self._servers} refuses: {_said(reason)}")
        if waited >= (DOWN if self._down else PATIENCE):
            hung_up = self._down and self._reason is None  # each other way to be down is told with its reason
            raise Unavailable(f"can't reach Kafka at {self._servers}: {HUNG_UP if hung_up else _said(reason)}")

    def _note(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - it says how many, and not why
            self._down = True
        elif self._reason is None or self._reason.code() not in DENIED:
            self._reason = error


def _said(reason: KafkaError) -> str:
    if reason.code() == KafkaError._BAD_MSG:  # noqa: SLF001 - it would go on about the size of what it takes for an answer
        return "what answers there is no Kafka, or wants TLS (security.protocol=SSL)"
    said = _WHERE.sub("", reason.str()).rstrip(": ")
    return f"{said}: {UNVERIFIED}" if said.endswith("certificate verify failed") else said


def quieten() -> None:
    """librdkafka logs each try to connect, several times a second. Callers get it as an error; who wants to read all gives its logger a level."""
    logger = logging.getLogger(LIBRARY)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
