"""The URL of a Kafka cluster, and what it may say.

    kafka://[user:password@]host:9092[,host2:9092][?option=value&...]

`mode` is `classic` (default) or `share`; `partitions` and `replication` are for topics that are declared here; `topic.<name>` is a configuration of
theirs (`topic.retention.ms=604800000`), `dlq.<name>` one of their dead-letter topics; `skip.backlog=yes` lets a new group start at the end;
`partitions.force=yes` adds partitions to an ordered topic though jobs wait in it. Every other option is librdkafka's own.
A mapping beside the URL may say all of this too, and what is no text (`oauth_cb`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote

from postroom.adapters.errors import ConfigurationError
from postroom.adapters.urls import redact

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CLASSIC", "SHARE", "Options", "parse"]

CLASSIC, SHARE = "classic", "share"

_TOPIC = re.compile(r"topic\.(?!metadata\.|blacklist)")  # those are the client's own
_DLQ = re.compile(r"dlq\.")
_ALIASES = {"delivery.timeout.ms": "message.timeout.ms", "sasl.mechanisms": "sasl.mechanism"}
"""Those of which we rely on the value, or set one."""
_SAFE_LOGIN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
"""Of who has a name, unless the options say otherwise: a password is not sent in the clear by default."""
_YES = {"yes": True, "true": True, "no": False, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a URL says. `partitions` and `replication` None leave the number to the cluster, and what is there is not compared.

    `client` and `objects` are librdkafka's, texts and callbacks.
    """

    servers: str
    mode: str = CLASSIC
    partitions: int | None = None
    replication: int | None = None
    topic: Mapping[str, str] = field(default_factory=dict)
    dlq: Mapping[str, str] = field(default_factory=dict)
    client: Mapping[str, str] = field(default_factory=dict)
    objects: Mapping[str, object] = field(default_factory=dict)
    skip_backlog: bool = False
    force: bool = False


def parse(url: str, options: Mapping[str, object] | None = None) -> Options:
    """Read a URL, and options beside it. Raises ConfigurationError that names the option and never holds the secret."""
    _, _, rest = url.partition("://")
    place, _, query = rest.partition("?")
    credentials, _, servers = place.rstrip("/").rpartition("@")
    if not servers or "/" in servers:
        raise ConfigurationError(f"{redact(url)!r}: write kafka://host:9092, several as kafka://one:9092,two:9092")
    given, objects = _merged(_pairs(query, url), options or {}, login=_login(credentials))
    return Options(
        servers=servers,
        mode=_one_of((CLASSIC, SHARE), "mode", given.pop("mode", CLASSIC)),
        partitions=_count("partitions", given.pop("partitions", None), 100_000),
        replication=_count("replication", given.pop("replication", None), 10_000),
        force=_YES[_one_of(_YES, "partitions.force", given.pop("partitions.force", "no"))],
        skip_backlog=_YES[_one_of(_YES, "skip.backlog", given.pop("skip.backlog", "no"))],
        topic=_taken(given, _TOPIC),
        dlq=_taken(given, _DLQ),
        client={**(_SAFE_LOGIN if credentials else {}), **given},
        objects=objects,
    )


def _pairs(query: str, url: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ConfigurationError(f"{redact(url)!r}: write options as name=value, joined by &") from None
    given = dict(pairs)
    if len(given) < len(pairs):
        raise ConfigurationError(f"{redact(url)!r}: an option is given twice")
    return given


def _merged(said: Mapping[str, str], beside: Mapping[str, object], *, login: Mapping[str, str]) -> tuple[dict[str, str], dict[str, object]]:
    """Texts, and what is none."""
    texts, objects = dict(login), dict[str, object]()
    for written, value in [*said.items(), *beside.items()]:
        name = _ALIASES.get(written, written)
        if name in texts:
            raise ConfigurationError(f"{name}: it is given twice")
        if value is None:
            raise ConfigurationError(f"{name}: None is no value; leave the option out")
        if isinstance(value, str | int | float):
            texts[name] = str(value).lower() if isinstance(value, bool) else str(value)
        else:
            objects[name] = value
    return texts, objects


def _taken(given: dict[str, str], which: re.Pattern[str]) -> dict[str, str]:
    return {name.partition(".")[2]: given.pop(name) for name in [*given] if which.match(name)}


def _login(credentials: str) -> dict[str, str]:
    user, colon, password = credentials.partition(":")
    return {**({"sasl.username": unquote(user)} if credentials else {}), **({"sasl.password": unquote(password)} if colon else {})}


def _one_of(choice: Mapping[str, bool] | tuple[str, ...], name: str, value: str) -> str:
    if value not in choice:
        raise ConfigurationError(f"{name}={value!r}: it is one of {', '.join(choice)}")
    return value


def _count(name: str, value: str | None, most: int) -> int | None:
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= len(str(most)) and 1 <= int(value) <= most):
        raise ConfigurationError(f"{name}={value!r}: it is a number from 1 to {most:,}")
    return int(value)
