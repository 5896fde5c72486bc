"""One URL, one backend: the scheme chooses, and only the chosen backend's library is imported."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from .errors import MissingExtra, UnknownScheme
from .urls import redact, scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .seam import Adapter

__all__ = ["BACKENDS", "connect"]

_SQL = ("postroom.adapters.sql.adapter", "SqlAdapter", "")  # knows the extra of each database itself

_RABBITMQ = ("postroom.adapters.rabbitmq", "open_rabbitmq", "rabbitmq")

BACKENDS: Mapping[str, tuple[str, str, str]] = {
    "amqp": _RABBITMQ,
    "amqps": _RABBITMQ,
    "kafka": ("postroom.adapters.kafka.adapter", "open_kafka", "kafka"),
    "mariadb": _SQL,
    "memory": ("postroom.adapters.memory", "open_memory", ""),
    "mysql": _SQL,
    "postgres": _SQL,
    "postgresql": _SQL,
    "sqlite": _SQL,
}
"""For each scheme: the module, what in it opens an adapter from a URL, and the extra that brings the client library."""


def connect(url: str, options: Mapping[str, object] | None = None) -> Adapter:
    """Return the adapter that answers to `url`: `memory:`, `sqlite:///jobs.db`, `postgresql://user:password@host/database` ...

    `options` are more of what the query of the URL may say, under the same names, and what no text can: for Kafka librdkafka's (`oauth_cb`,
    `logger` ...) for each client, for RabbitMQ pika's parameters (`ssl_options`, `credentials` ...), for SQL the arguments of SQLAlchemy's
    create_engine (`connect_args`, `pool_size` ...); `memory:` takes none. What the URL says is not said here again.
    Never waits for a server that is slow: the first use does. Each call to `memory:` gives a new, empty one: pass the object where it is shared.
    Raises UnknownScheme, MissingExtra or ConfigurationError; none shows the password.
    """
    scheme = scheme_of(url)
    if scheme not in BACKENDS:
        raise UnknownScheme(f"{redact(url)!r}: no backend answers to the scheme {scheme!r}; use one of {', '.join(sorted(BACKENDS))}")
    module, opener, extra = BACKENDS[scheme]
    return cast("Callable[[str, Mapping[str, object]], Adapter]", getattr(_load(module, extra, url), opener))(url, options or {})


def _load(module: str, extra: str, url: str) -> object:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not extra or (error.name or "").startswith("postroom"):
            raise  # a fault of ours, not a library that is missing
        raise MissingExtra(f"{redact(url)!r} needs the {error.name} library: pip install 'postroom[{extra}]'") from None
