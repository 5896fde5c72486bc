"""What an `amqp:` or `amqps:` URL says.

    amqp://user:password@host:5672,other:5672/vhost?heartbeat=20&queue_type=quorum

Hosts are tried in their order. User, password and vhost are percent-encoded where they hold one of `: / ? # @ %`; without a path the vhost is `/`.
Options of our own: queue_type (quorum or classic), partitions (of an ordered queue), exchange, confirm_timeout, patience, connection_name, and
consumer_timeout, the server's (1800 s unless it was changed there): a worker warns of handlers that may run for longer.
For amqps: cafile, certfile, keyfile, keyfile_password, server_hostname, and auth=external for a user that the client's certificate names.
Every other parameter of pika's goes by its own name. A mapping beside the URL may say all of this too, and what is no text: `credentials` and
`ssl_options`, objects of pika's.
"""

from __future__ import annotations

import json
import math
import os
import socket
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import pika
from pika.credentials import ExternalCredentials

from postroom.adapters.errors import ConfigurationError
from postroom.adapters.urls import redact

from .layout import LANES, QueueType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["Options", "parse"]

PORT, TLS_PORT = 5672, 5671


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError(f"more than 0 seconds, not {text!r}")
    return value


def _seconds_or_none(text: str) -> float:
    return 0.0 if text == "0" else _seconds(text)


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isdecimal() and least <= int(text) <= most):
            raise ValueError(f"a whole number from {least} to {most}, not {text!r}")
        return int(text)

    return read


def _table(text: str | dict[str, Any]) -> dict[str, Any]:
    value = json.loads(text) if isinstance(text, str) else text
    if not isinstance(value, dict):
        raise TypeError(f"a JSON object, not {text!r}")
    return value


def _text(text: str) -> str:
    if not text:
        raise ValueError("it is empty")
    return text


def _queue_type(text: str) -> QueueType:
    try:
        return QueueType(text)
    except ValueError:
        raise ValueError(f"quorum or classic, not {text!r}") from None


def _auth(text: str) -> str:
    if text not in {"plain", "external"}:
        raise ValueError(f"plain or external, not {text!r}")
    return text


def _instance_of(*types: type) -> Callable[[object], object]:
    def read(value: object) -> object:
        if not isinstance(value, types):
            raise TypeError(f"an object of {' or '.join(each.__name__ for each in types)}, beside the URL")
        return value

    return read


_OURS: Mapping[str, Callable[[str], Any]] = {
    "auth": _auth,
    "confirm_timeout": _seconds,
    "connection_name": _text,
    "consumer_timeout": _seconds_or_none,
    "exchange": _text,
    "partitions": _whole(1, LANES),
    "patience": _seconds,
    "queue_type": _queue_type,
}
_TLS: Mapping[str, Callable[[str], Any]] = dict.fromkeys(("cafile", "certfile", "keyfile", "keyfile_password", "server_hostname"), _text)
_PIKA: Mapping[str, Callable[[str], Any]] = {
    "blocked_connection_timeout": _seconds,
    "channel_max": _whole(1, 65535),
    "client_properties": _table,
    "connection_attempts": _whole(1, 1000),
    "frame_max": _whole(4096, 131072),
    "heartbeat": _whole(0, 65535),
    "locale": _text,
    "retry_delay": _seconds,
    "socket_timeout": _seconds,
    "stack_timeout": _seconds,
    "tcp_options": _table,
}
_OBJECTS: Mapping[str, Callable[[Any], Any]] = {
    "credentials": _instance_of(pika.PlainCredentials, ExternalCredentials),
    "ssl_options": _instance_of(pika.SSLOptions),
}
_KNOWN = {**_OURS, **_TLS, **_PIKA, **_OBJECTS}
_NO_TEXT = {"client_properties", "tcp_options", *_OBJECTS}

_DEFAULTS: Mapping[str, Any] = {
    "heartbeat": 20,  # seconds: a peer that vanished without a word is missed within one lease
    "socket_timeout": 10.0,
    "stack_timeout": 10.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All that a URL says. `confirm_timeout` and `patience` are seconds: of silence after a publish, and for any other answer.

    `consumer_timeout` (seconds, 0: none) is what is believed of the server: after that time it takes a delivery back that is not settled.
    """

    hosts: tuple[tuple[str, int], ...]
    virtual_host: str = "/"
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    auth: str = "plain"
    credentials: pika.PlainCredentials | ExternalCredentials | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    ssl_options: pika.SSLOptions | None = None
    server_hostname: str | None = None
    queue_type: QueueType = QueueType.QUORUM
    partitions: int = 8
    exchange: str = "postroom"
    confirm_timeout: float = 30.0
    patience: float = 15.0
    consumer_timeout: float = 1800.0
    connection_name: str = ""
    settings: Mapping[str, Any] = field(default_factory=lambda: _DEFAULTS)

    @property
    def where(self) -> str:
        """The hosts, to be shown."""
        return ", ".join(f"{host}:{port}" for host, port in self.hosts)

    @property
    def connect_timeout(self) -> float:
        """The longest (seconds) that it takes to find out that no host answers."""
        attempts: int = self.settings.get("connection_attempts", 1)
        pause: float = self.settings.get("retry_delay", 2.0)
        each: float = self.settings["stack_timeout"]
        return len(self.hosts) * (attempts * each + (attempts - 1) * pause)

    def parameters(self, role: str) -> list[pika.ConnectionParameters]:
        """For each host what pika is to be told; `role` goes into the connection's name."""
        name = f"{self.connection_name or f'postroom@{socket.gethostname()}:{os.getpid()}'} {role}"
        properties = {"connection_name": name, "product": "Postroom", **self.settings.get("client_properties", {})}
        return [
            pika.ConnectionParameters(
                host=host,
                port=port,
                virtual_host=self.virtual_host,
                credentials=self.credentials or self._login(),
                ssl_options=pika.SSLOptions(self.tls, self.server_hostname or host) if self.tls else self.ssl_options,
                **{**self.settings, "client_properties": properties},
            )
            for host, port in self.hosts
        ]

    def _login(self) -> pika.PlainCredentials | ExternalCredentials:
        return ExternalCredentials() if self.auth == "external" else pika.PlainCredentials(self.user, self.password)


def parse(url: str, options: Mapping[str, object] | None = None) -> Options:
    """Read a URL, and options beside it. Raises ConfigurationError, which names what is amiss and never shows the password."""
    try:
        parts = _split(url)
        secure = parts.scheme == "amqps"
        userinfo, _, hosts = parts.netloc.rpartition("@")
        given = _given([*parse_qsl(parts.query, keep_blank_values=True), *(options or {}).items()])
        settings: dict[str, Any] = {name: value for name, value in given.items() if name in _OURS}
        return Options(
            hosts=tuple(_host(host, TLS_PORT if secure else PORT) for host in hosts.split(",")),
            virtual_host=_virtual_host(parts.path),
            settings={**_DEFAULTS, **{name: value for name, value in given.items() if name in _PIKA}},
            **(settings | _credentials(userinfo, given) | _tls(given, secure=secure)),
        )
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{redact(url)!r}: {error}") from None


def _split(url: str) -> SplitResult:
    """Errors quote nothing of a URL whose password may have ended up in the wrong part of it."""
    parts = urlsplit(url)
    if not url.partition(":")[2].startswith("//"):
        raise ValueError("write it like amqp://user:password@host/vhost")
    if "@" in parts.path or parts.fragment or ("@" in parts.query and "@" not in parts.netloc):
        raise ValueError("write / as %2F, ? as %3F, # as %23 and @ as %40 in user, password and vhost")
    return parts


def _credentials(userinfo: str, given: Mapping[str, Any]) -> dict[str, Any]:
    if login := given.get("credentials"):
        if userinfo or "auth" in given:
            raise ValueError("option 'credentials': who logs in is given twice")
        return {"credentials": login, "user": getattr(login, "username", "")}
    user, colon, password = userinfo.partition(":")
    return ({"user": unquote(user)} if user else {}) | ({"password": unquote(password)} if colon else {})


def _given(pairs: Iterable[tuple[str, object]]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, value in pairs:
        if name not in _KNOWN:
            raise ValueError(f"there is no option {name!r}; there are {', '.join(sorted(_KNOWN))}")
        if name in given:
            raise ValueError(f"option {name!r} is given twice")
        try:
            given[name] = _KNOWN[name](value if name in _NO_TEXT else _as_text(value))
        except (ValueError, TypeError) as error:
            raise ValueError(f"option {name!r}: {error}") from None
    return given


def _as_text(value: object) -> str:
    if not isinstance(value, str | int | float):
        raise TypeError(f"a text or a number, not an object of {type(value).__name__}")
    return str(value)


def _host(text: str, default_port: int) -> tuple[str, int]:
    parsed = urlsplit(f"//{text}")  # it knows about [::1]:5672
    try:
        host, port = parsed.hostname, parsed.port
    except ValueError:
        host = port = None
    if not host:
        raise ValueError("it names no host, or no port; write amqp://user:password@host:5672/vhost")
    return host, port or default_port


def _virtual_host(path: str) -> str:
    name = path.removeprefix("/")
    if "/" in name:
        raise ValueError("write / as %2F in a vhost")
    return unquote(name) or "/"


def _tls(given: Mapping[str, Any], *, secure: bool) -> dict[str, Any]:
    told = {name: value for name, value in given.items() if name in _TLS or name == "ssl_options"}
    if told and not secure:
        raise ValueError(f"option {min(told)!r} needs amqps:")
    if "ssl_options" in told and len(told) > 1:
        raise ValueError(f"option {min(told)!r}: 'ssl_options' says it, too")
    if "ssl_options" in told:
        return told
    return {"tls": _context(told), "server_hostname": told.get("server_hostname")} if secure else {}


def _context(given: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=given.get("cafile"))
        if "certfile" in given:
            context.load_cert_chain(given["certfile"], given.get("keyfile"), given.get("keyfile_password", ""))
    except OSError as error:  # an SSLError is one too
        raise ValueError(f"can't use {' and '.join(value for name, value in given.items() if name.endswith('file'))}: {error}") from None
    return context
