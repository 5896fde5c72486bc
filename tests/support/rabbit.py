"""A RabbitMQ that a test may break, and questions to it that the adapter has no part in."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel

from postroom.adapters import Adapter
from postroom.adapters.errors import Unavailable
from postroom.adapters.seam import Consumer, Delivery, Message, Outcome, Verdict

from .proxy import Proxy

__all__ = ["Server", "messages", "publish_until_confirmed", "raw", "receive", "subscribe", "through", "verdicts"]

PATIENCE = 30.0
START_SECONDS = 120
_TLS_FILES = {"cacertfile": "ca.pem", "certfile": "server.pem", "keyfile": "server.key"}


@contextmanager
def raw(url: str) -> Iterator[BlockingChannel]:
    """A channel of the tests' own."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


def through(proxy: Proxy, url: str, options: str = "") -> str:
    """The same URL by way of the proxy."""
    return url.replace(f":{urlsplit(url).port}", f":{proxy.port}") + options


def messages(queue: str, count: int, size: int = 2) -> list[Message]:
    return [Message(id=f"{number}", queue=queue, body=bytes(size)) for number in range(count)]


def verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    return [outcome.verdict for outcome in outcomes]


def subscribe(adapter: Adapter, queue: str, prefetch: int = 50) -> Consumer:
    return adapter.consume({queue: 1}, group="tests", prefetch=prefetch, name=f"worker-{uuid.uuid4().hex[:4]}")


def receive(consumer: Consumer, count: int) -> list[Delivery]:
    """Exactly so many, whatever outage there is meanwhile."""
    received: list[Delivery] = []
    late = time.monotonic() + PATIENCE
    while len(received) < count and time.monotonic() < late:
        try:
            received += consumer.receive(count - len(received), 0.5)
        except Unavailable:
            time.sleep(0.05)
    assert len(received) == count
    return received


def publish_until_confirmed(adapter: Adapter, batch: Sequence[Message]) -> int:
    """As a relay does: again, what has no answer. Returns how many times it took."""
    for turn in range(100):
        outcomes = adapter.publish(batch)
        batch = [message for message, outcome in zip(batch, outcomes, strict=True) if outcome.verdict is not Verdict.CONFIRMED]
        if not batch:
            return turn + 1
        time.sleep(0.1)
    raise AssertionError(f"{len(batch)} are never confirmed: {outcomes[0].reason}")


class Server:
    """A server in a container of its own, by its URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.port = urlsplit(url).port or 0
        self._container = _docker("ps", "--quiet", "--filter", f"publish={self.port}").strip()

    def ctl(self, *arguments: str) -> str:
        """`rabbitmqctl` with these arguments."""
        return _docker("exec", self._container, "rabbitmqctl", "--quiet", *arguments)

    @property
    def address(self) -> str:
        """Of its container, where ports may be opened that are not published."""
        return _docker("inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", self._container).strip()

    def listen_with_tls(self, port: int, folder: Path) -> None:
        """Take TLS connections on this port too, from clients with a certificate: ca.pem, server.pem and server.key are in `folder`."""
        _docker("cp", str(folder), f"{self._container}:/etc/rabbitmq/tls")
        _docker("exec", "--user", "root", self._container, "chmod", "-R", "a+rX", "/etc/rabbitmq/tls")
        files = ", ".join(f'{{{option}, "/etc/rabbitmq/tls/{name}"}}' for option, name in _TLS_FILES.items())
        self.ctl("eval", f"rabbit_networking:start_ssl_listener({port}, [{files}, {{verify, verify_peer}}, {{fail_if_no_peer_cert, true}}], 1).")

    def kill(self) -> None:
        """SIGKILL. Which quorum queues there are, RabbitMQ writes down a moment after it has said so: that moment is over."""
        self.ctl("eval", "[dets:sync(Table) || Table <- dets:all()].")
        _docker("kill", self._container)

    def mend(self) -> None:
        """Start it if a test has left it dead."""
        if _docker("inspect", "--format", "{{.State.Running}}", self._container).strip() != "true":
            self.start()

    def start(self) -> None:
        """Start it again after `kill`, and wait until it answers: some seconds."""
        _docker("start", self._container)
        late = time.monotonic() + START_SECONDS
        while not self._answers():
            assert time.monotonic() < late, "RabbitMQ did not start again"
            time.sleep(0.1)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It stands still: nothing is answered, nothing is closed."""
        _docker("pause", self._container)
        try:
            yield
        finally:
            _docker("unpause", self._container)

    @contextmanager
    def alarmed(self) -> Iterator[None]:
        """It believes to be out of memory, and takes no publishes."""
        self.ctl("set_vm_memory_high_watermark", "0.00001")
        try:
            yield
        finally:
            self.ctl("set_vm_memory_high_watermark", "0.6")

    def _answers(self) -> bool:
        try:
            pika.BlockingConnection(pika.URLParameters(self.url)).close()
        except pika.exceptions.AMQPError:
            return False
        return True

    def environment(self, name: str, value: str) -> None:
        """Set a variable of the application `rabbit`, in Erlang's words, for channels that are opened from then on."""
        self.ctl("eval", f"application:set_env(rabbit, {name}, {value}), persistent_term:put({name}, {value}).")


def _docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout
