"""The topics of a carrier as they should be, and what of that keeps jobs from being lost: it is compared also where the URL says nothing of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .config import LARGEST_RECORD, LETTER_ROOM
from .registry import TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .options import Options
    from .registry import Declared

__all__ = ["REGISTRY", "Topic", "topics_of"]

_POLICY, _AGE, _SIZE = "cleanup.policy", "retention.ms", "retention.bytes"

_JOBS = "of the jobs of one ordering key only the newest would be kept"
_ANOTHER = ", or, where another program fills it, declare Queue(foreign=True)"
_LETTERS = "dead letters would be gone before anybody has looked at them"
_DECLARATIONS = "what is declared would be forgotten"
_CHANGE = "; change it there (kafka-configs.sh --alter)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as it should be: `config` when it is made, `asked` by the URL, `kept` so that nothing is lost, and the `remedy` where it is not so."""

    name: str
    config: Mapping[str, str]
    ordered: bool = False
    partitions: int | None = 1
    asked: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    remedy: str = ""

    def differences(self, actual: Mapping[str, str | None]) -> Iterator[str]:
        """What is asked and not there, and what is there and loses jobs: whoever set it, unless it is asked for."""
        for option, value in self.asked.items():
            if actual.get(option) != value:
                yield self._difference(option, value, actual)
        for option, value in self.kept.items():
            if option not in self.asked and _loses(option, value, actual):
                yield self._difference(option, value, actual) + self.remedy.format(option=option, actual=actual[option])

    def _difference(self, option: str, value: str, actual: Mapping[str, str | None]) -> str:
        return f"topic {self.name!r}: expected {option} {value!r}, but it is there with {option} {actual.get(option)!r}"


REGISTRY = Topic(name=TOPIC, config={_POLICY: "compact"}, kept={_POLICY: "compact"}, remedy=f": {_DECLARATIONS}{_CHANGE}")
"""Which queues there are."""


def topics_of(carrier: Declared, options: Options) -> Iterator[Topic]:
    """Those that are ours: the topic of another program is what its owner has made it."""
    if not carrier.retries:
        yield Topic(
            name=carrier.topic,
            config={"max.message.bytes": str(LARGEST_RECORD), **options.topic},
            ordered=carrier.ordered,
            partitions=options.partitions,
            asked=options.topic,
            kept={_POLICY: "delete"},
            remedy=f": {_JOBS}{_CHANGE}, or say topic.{{option}}={{actual}} in the URL if it is meant{_ANOTHER}",
        )
    yield Topic(
        name=carrier.dead_letter,
        config={"max.message.bytes": str(LARGEST_RECORD + LETTER_ROOM), _AGE: "-1", **options.dlq},
        asked=options.dlq,
        kept={_POLICY: "delete", _AGE: "-1", _SIZE: "-1"},
        remedy=f": {_LETTERS}{_CHANGE}, or say dlq.{{option}}={{actual}} in the URL if it is meant",
    )


def _loses(option: str, expected: str, actual: Mapping[str, str | None]) -> bool:
    policy = {word.strip() for word in (actual.get(_POLICY) or "").split(",")}
    if option == _POLICY:
        return bool(policy - {expected, ""}) and (expected == "delete" or _is_limited(actual))
    return "delete" in policy and int(actual.get(option) or -1) >= 0


def _is_limited(actual: Mapping[str, str | None]) -> bool:
    return any(_loses(option, "-1", actual) for option in (_AGE, _SIZE))
