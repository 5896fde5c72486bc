"""The final configuration of each client: what a job queue needs, and what the user may say beside it.

A table, not code: `_FORCED` can't be otherwise, `_DEFAULTS` may be changed by the URL. What contradicts is refused at start, never ignored.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, Producer, ShareConsumer

from postroom.adapters.errors import ConfigurationError

from .options import CLASSIC, SHARE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .options import Options

    Config = dict[str, object]

__all__ = ["LIBRARY", "MESSAGE_TIMEOUT", "admin_config", "check", "consumer_config", "producer_config", "reader_config", "share_config", "shown"]

LARGEST_RECORD = 4 * 1024 * 1024
"""The most bytes of a record, here and in the topics that are declared here. A dead letter may have a little more: it says why it died."""
LETTER_ROOM = 64 * 1024
MESSAGE_TIMEOUT = 30_000
"""Milliseconds until a record that got no answer is reported as timed out."""

LIBRARY = "librdkafka"
"""The logger that the client library writes to."""
_SHARED = {"logger": logging.getLogger(LIBRARY)}
_NONE_BY_CHANCE = {"allow.auto.create.topics": False}
"""Else asking for a topic that was deleted makes one, with another number of partitions. For consumers it is the default."""

_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "producer": {
        **_NONE_BY_CHANCE,
        "linger.ms": 1,
        "message.timeout.ms": MESSAGE_TIMEOUT,
        "message.max.bytes": LARGEST_RECORD + LETTER_ROOM,
        "partitioner": "murmur2_random",  # what Java and most others do: a key has one partition, whoever publishes it
        "topic.metadata.propagation.max.ms": 5_000,
    },
    "consumer": {
        "fetch.wait.max.ms": 100,
        "fetch.queue.backoff.ms": 10,  # with so little fetched ahead, a second is too long to wait for the next
        "queued.min.messages": 2_000,  # of each partition, as the next one
        "queued.max.messages.kbytes": 4_096,
    },
}
_SHARE: Mapping[str, object] = {"statistics.interval.ms": 500}  # only there a share consumer tells that it has joined
_CLASSIC_PROTOCOL = {"partition.assignment.strategy": "cooperative-sticky"}

_FORCED: Mapping[str, Mapping[str, object]] = {
    "producer": {"enable.idempotence": True, "acks": "all"},
    "consumer": {
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,  # tells how far the log was read where its last offsets hold no record
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",  # new groups are started at the beginning by us; an offset that is gone is an error, not a jump
    },
}

_NO, _YES = r"(false|f|0)$", r"(true|t|1)$"
"""As librdkafka reads it."""

_REFUSED = (
    ("enable.auto.commit|auto.commit.enable", rf"(?!{_NO}).*", "a job would count as done when it is handed over"),
    ("auto.commit.interval.ms", r".*", "offsets are committed by hand"),
    ("enable.auto.offset.store", rf"(?!{_NO}).*", "a job would count as done when it is handed over"),
    ("acks|request.required.acks", r"(?!all$|-1$).*", "a job is confirmed when all replicas in sync have it"),
    ("enable.idempotence", rf"(?!{_YES}).*", "retries inside the client would change the order of a key"),
    ("isolation.level", r"(?!read_committed$).*", "a replay of dead letters that was broken off would be seen"),
    ("enable.partition.eof", rf"(?!{_YES}).*", "the end of a partition could not be told from silence"),
    ("partition.assignment.strategy", r"(?!cooperative-sticky$).*", "each rebalance would take all partitions from all workers"),
    ("share.acknowledgement.mode", r"(?!explicit$).*", "a job would count as done when the next one is asked for"),
    ("message.timeout.ms", r"0+", "publish() would have no bound"),
    (
        "auto.offset.reset",
        r"(?!error$).*",
        "an offset that is gone would be a jump; a new group begins with the oldest job, at the end of a topic if you say skip.backlog=yes",
    ),
    ("max.poll.records", r".*", "the prefetch of the worker says it"),
    ("group.id", r".*", "a group is named where its jobs are declared"),
    ("transactional.id", r".*", "each replay of dead letters has its own"),
    ("bootstrap.servers|metadata.broker.list", r".*", "the URL names the servers before the question mark"),
    ("default.topic.config", r".*", "it would be a way round this table; write each option by its name"),
    ("error_cb|on_commit|on_delivery", r".*", "it is ours: receive() and the outcomes of publish() tell of errors"),
)
_REFUSED_BY_MODE = {
    CLASSIC: (("share.acknowledgement.mode|share.acquire.mode", r".*", "it is for mode=share"),),
    SHARE: (
        ("enable.auto.offset.store", r".*", "a share group has no offsets"),
        ("statistics.interval.ms", r"(?!0*[1-9]\d{0,3}$).*", "only its statistics, at least every 9999 ms, tell that a member has joined"),
        ("stats_cb", r".*", "its statistics tell us that a member has joined"),
    ),
}
_BACKLOG = "a share group begins with the oldest job, or would skip jobs of partitions that are added, too: use mode=classic"

_CHOICES = {
    "sasl.mechanism": ("GSSAPI", "OAUTHBEARER", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
    "sasl.oauthbearer.method": ("default", "oidc"),
    "security.protocol": ("plaintext", "sasl_plaintext", "sasl_ssl", "ssl"),
    "ssl.endpoint.identification.algorithm": ("https", "none"),
}
"""What else stands there may be a secret that has got into the wrong place: it is shown nowhere."""

_ONLY: Mapping[str, re.Pattern[str]] = {
    "producer": re.compile(
        r"acks|request\.(required\.acks|timeout\.ms)|enable\.(idempotence|gapless.*)|(message|delivery)\.timeout\.ms|linger\.ms|batch\..*|"
        r"queue\.buffering\..*|compression\..*|retries|message\.send\.max\.retries|partitioner|transaction.*|sticky\..*|queuing\.strategy"
    ),
    "consumer": re.compile(
        r"group\..*|session\..*|heartbeat\..*|max\.(poll|partition)\..*|partition\.assignment\..*|fetch\.(?!message).*|queued\..*|auto\.(offset|commit).*|"
        r"enable\.(auto|partition).*|isolation\.level|check\.crcs|share\..*|coordinator\..*|client\.rack"
    ),
}
_SECRET = re.compile(r"pas+w|passphrase|pwd|secret|pem|\.key$|token|credential", re.IGNORECASE)
_LOGIN = re.compile(r"s(asl|sl)\.", re.IGNORECASE)
_HARMLESS = re.compile(
    r"sasl\.(mechanism|username|kerberos\.(service\.name|principal|keytab|min\.time\.before\.relogin)|oauthbearer\.(method|scope))|"
    r"ssl\.([a-z.]+\.)?(location|suites|list|stores|algorithm|providers)"
)
"""Of a login these are shown, and nothing that we don't know: it may be a password whose option has a typo."""


def producer_config(options: Options) -> Config:
    """For publishing: idempotent, confirmed by all replicas in sync."""
    return _config(options, "producer")


def consumer_config(options: Options, group: str) -> Config:
    """For a classic group, by either protocol: offsets only by hand."""
    protocol = {} if options.client.get("group.protocol") == "consumer" else _CLASSIC_PROTOCOL
    return {**protocol, **_config(options, "consumer"), "group.id": group}


def share_config(options: Options, group: str, most: int) -> Config:
    """For a share group: at most about `most` records at a time, each acknowledged by hand."""
    limits = {"share.acknowledgement.mode": "explicit", "max.poll.records": most, "group.id": group, "bootstrap.servers": options.servers}
    return {**_SHARED, **_SHARE, **_given(options, "consumer"), **limits}


def reader_config(options: Options) -> Config:
    """For reading a topic from here to its end, outside of any group: an answer at once, also when there is nothing."""
    return {**consumer_config(options, "postroom-reader"), "fetch.wait.max.ms": 10, "auto.offset.reset": "earliest"}


def admin_config(options: Options) -> Config:
    """For declaring and looking."""
    mine = {name: value for name, value in _said(options).items() if not any(only.fullmatch(name) for only in _ONLY.values())}
    return {**_SHARED, **_NONE_BY_CHANCE, **mine, "bootstrap.servers": options.servers}


def check(options: Options) -> None:
    """Raise ConfigurationError for an option that contradicts, or that librdkafka does not know. Asks no server."""
    if wrong := next(_contradictions(options), None):
        raise ConfigurationError(f"{wrong}. The configuration would be: {_all_shown(options)}")
    try:
        Producer(producer_config(options))
        Consumer(consumer_config(options, "postroom-check")).close()
        if options.mode == SHARE:
            ShareConsumer(share_config(options, "postroom-check", 1)).close()
        else:
            _check_heartbeat(consumer_config(options, "postroom-check"))
    except (KafkaException, ValueError, TypeError) as error:
        raise ConfigurationError(f"{_missing_file(options) or _told(error, options)}. The configuration would be: {_all_shown(options)}") from None


def _contradictions(options: Options) -> Iterator[str]:
    said = _said(options)
    for names, pattern, why in (*_REFUSED, *_REFUSED_BY_MODE[options.mode]):
        for name in names.split("|"):
            if name in said and re.fullmatch(pattern, str(said[name]), re.IGNORECASE | re.DOTALL):
                yield f"{_shown(name, said[name])}: refused, because {why}"
    for name, choices in _CHOICES.items():
        if _is_none_of(name, said.get(name, choices[0])):
            yield f"{name}: refused, because it is none of {', '.join(choices)}"
    if options.mode == SHARE and options.skip_backlog:
        yield f"skip.backlog=yes: refused, because {_BACKLOG}"
    if isinstance(said.get("logger"), str):
        yield "logger: refused, because a text is no logger"


def _missing_file(options: Options) -> str | None:
    """OpenSSL's words for it would tell nobody."""
    missing = (
        f"{name}={value}: there is no such file" for name, value in options.client.items() if name.endswith(".location") and not Path(value).exists()
    )
    return next(missing, None)


def _check_heartbeat(final: Config) -> None:
    """The client library leaves it to the broker, which puts such a member out of its group, again and again."""
    session, heartbeat = int(str(final.get("session.timeout.ms", 45_000))), int(str(final.get("heartbeat.interval.ms", 3_000)))
    if final.get("group.protocol") != "consumer" and heartbeat >= session:
        raise ValueError(f"heartbeat.interval.ms={heartbeat}: it must be less than session.timeout.ms={session}, at best a third of it")


def shown(config: Mapping[str, object]) -> str:
    """A configuration for people's eyes: sorted, secrets as ***."""
    return " ".join(_shown(name, value) for name, value in sorted(config.items()) if name != "logger")


def _shown(name: str, value: object) -> str:
    return f"{name}={'***' if _is_secret(name) or _is_none_of(name, value) else value}"


def _is_none_of(name: str, value: object) -> bool:
    return name in _CHOICES and str(value).lower() not in map(str.lower, _CHOICES[name])


def _is_secret(name: str) -> bool:
    if _LOGIN.match(name):
        return not _HARMLESS.fullmatch(name)
    return _SECRET.search(name) is not None


def _said(options: Options) -> Mapping[str, object]:
    return {**options.client, **options.objects}


def _given(options: Options, kind: str) -> Config:
    other = _ONLY["consumer" if kind == "producer" else "producer"]
    return {name: value for name, value in _said(options).items() if not other.fullmatch(name)}


def _config(options: Options, kind: str) -> Config:
    return {**_SHARED, **_DEFAULTS[kind], **_given(options, kind), **_FORCED[kind], "bootstrap.servers": options.servers}


def _all_shown(options: Options) -> str:
    reading = share_config(options, "<group>", 1) if options.mode == SHARE else consumer_config(options, "<group>")
    return f"[producer] {shown({**producer_config(options), **_said(options)})} [consumer] {shown({**reading, **_said(options)})}"


def _told(error: Exception, options: Options) -> str:
    """What librdkafka says, which quotes a value that it does not take."""
    first = error.args[0] if error.args else error
    told = str(first.str()) if hasattr(first, "str") else str(first)
    for value in (value for name, value in options.client.items() if value and _is_secret(name)):
        told = told.replace(value, "***")
    return told
