"""A network that can be cut: a TCP proxy in a thread of its own, between a client and its server."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from contextlib import suppress
from typing import Self

__all__ = ["Proxy"]

CHUNK = 64 * 1024


class Proxy:
    """Listens on a free port of loopback, and carries every connection to `port`, both ways. Use it in a `with`."""

    def __init__(self, port: int) -> None:
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector = selectors.DefaultSelector()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._servers: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._silent = False
        self._swallows_answers = False
        self._refusing = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def port(self) -> int:
        """Where a client connects."""
        return self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._thread.join()
        self.cut()
        self._listener.close()
        self._selector.close()

    @property
    def connections(self) -> int:
        """How many are open."""
        with self._lock:
            return len(self._pairs) // 2

    def cut(self) -> None:
        """Reset every connection, on both sides."""
        with self._lock:
            for end in list(self._pairs):
                self._drop(end)

    def be_silent(self) -> None:
        """Lose every byte from now on, while the connections stay: a cable pulled out."""
        self._silent = True

    def swallow_answers(self) -> None:
        """Lose what the server says from now on, while it hears its clients well: what it confirms, they never learn."""
        self._swallows_answers = True

    def speak(self) -> None:
        """Carry bytes again. What was lost stays lost."""
        self._silent = self._swallows_answers = False

    def refuse(self) -> None:
        """Reset new connections too."""
        self._refusing = True
        self.cut()

    def accept(self) -> None:
        """Take new connections again."""
        self._refusing = False

    def _run(self) -> None:
        while not self._ended:
            for key, _ in self._selector.select(timeout=0.05):
                with self._lock:
                    self._take_in() if key.fileobj is self._listener else self._carry(key.fileobj)

    def _take_in(self) -> None:
        client, _ = self._listener.accept()
        if self._refusing:
            _reset(client)
            return
        try:
            server = socket.create_connection(("127.0.0.1", self._server))
        except OSError:
            _reset(client)
            return
        self._servers.add(server)
        for end, other in ((client, server), (server, client)):
            self._pairs[end] = other
            self._selector.register(end, selectors.EVENT_READ)

    def _carry(self, end: socket.socket) -> None:
        if end not in self._pairs:
            return
        try:
            data = end.recv(CHUNK)
            if data and not (self._silent or (self._swallows_answers and end in self._servers)):
                self._pairs[end].sendall(data)
        except OSError:
            data = b""
        if not data:
            self._drop(end)

    def _drop(self, end: socket.socket) -> None:
        for one in (end, self._pairs.get(end)):
            if one is not None and self._pairs.pop(one, None) is not None:
                self._selector.unregister(one)
                self._servers.discard(one)
                _reset(one)


def _reset(end: socket.socket) -> None:
    """Close without a goodbye."""
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()
