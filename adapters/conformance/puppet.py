"""A consumer in a process of its own, moved by lines on its standard input: `python -m postroom.adapters.conformance.puppet OPENER URL QUEUE NAME`.

It says `ready`, then answers each line with one line of JSON:

    receive SECONDS   the ids of the deliveries it got (at most one), which it holds now
    ack               the ids it held and acked
    publish ID        the id, once the message is confirmed
    drain SECONDS     receives and acks one by one until nothing came for so long: all those ids
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import TYPE_CHECKING, cast

from postroom.adapters.seam import Message, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.adapters.seam import Adapter, Consumer, Delivery


def main(opener: str, url: str, queue: str, name: str) -> None:
    """Obey until the standard input ends."""
    module, _, attribute = opener.partition(":")
    adapter = cast("Callable[[str], Adapter]", getattr(importlib.import_module(module), attribute))(url)
    consumer = adapter.consume({queue: 1}, group="conformance", prefetch=1, name=name)
    held: list[Delivery] = []
    _say("ready")
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        _say(_publish(adapter, queue, argument) if command == "publish" else _obey(consumer, held, command, float(argument or 0)))
    consumer.close()
    adapter.close()


def _obey(consumer: Consumer, held: list[Delivery], command: str, seconds: float) -> list[str]:
    if command == "drain":
        return _drain(consumer, seconds)
    if command == "receive":
        held += consumer.receive(1, seconds)
    names = [delivery.message.id for delivery in held]
    if command == "ack":
        consumer.ack(held)
        held.clear()
    return names


def _publish(adapter: Adapter, queue: str, identity: str) -> list[str]:
    (outcome,) = adapter.publish([Message(id=identity, queue=queue, body=b"{}")])
    return [identity] if outcome.verdict is Verdict.CONFIRMED else [outcome.reason]


def _drain(consumer: Consumer, seconds: float) -> list[str]:
    done = []
    while deliveries := consumer.receive(1, seconds):
        consumer.ack(deliveries)
        done += [delivery.message.id for delivery in deliveries]
    return done


def _say(answer: object) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201 - its strings


if __name__ == "__main__":
    main(*sys.argv[1:])
