"""Every place where a worker or a relay can be killed, as the one method that is replaced there by one that is deadly, once, for the victim."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from effects import die, first_time, flag
from journal import COMPANY, note, plan

from postroom.adapters.kafka import publisher as kafka_publisher
from postroom.adapters.kafka.adapter import KafkaAdapter
from postroom.adapters.kafka.classic import ClassicFeed
from postroom.adapters.kafka.consumer import KafkaConsumer
from postroom.adapters.kafka.share import ShareFeed
from postroom.adapters.rabbitmq import feed as rabbitmq_feed
from postroom.adapters.rabbitmq.confirms import Confirms
from postroom.adapters.rabbitmq.consumer import RabbitConsumer
from postroom.adapters.seam import Delivery
from postroom.consumers.ledger.answers import Answer, Started
from postroom.consumers.worker.committer import Committer
from postroom.consumers.worker.held import Held
from postroom.consumers.worker.lanes import Lane
from postroom.consumers.worker.marks import Marks
from postroom.consumers.worker.pipeline import Pipeline
from postroom.consumers.worker.settler import Settler
from postroom.consumers.worker.work import Receipt, Work
from postroom.outbox import rounds

IN_THE_HANDLER = "in the handler"
PLAN = plan()
hands: list[Held] = []


def watch() -> None:
    """Have this process write down what it receives, begins, starts and settles: before it does so, so that nothing is missing."""
    before(Marks, "polled", lambda *_: first_time(f"ready-{os.getpid()}"))
    before(Held, "add", lambda held, _: hands.append(held))
    before(Held, "remove", lambda _, receipts: note("settled", keys=keys_of(receipts)))
    before(Pipeline, "decode", _received)
    before(Committer, "begin", lambda _, works: note("begins", keys=keys_of(works)))
    before(Lane, "_run_one", lambda _, work, __: note("starts", key=work.envelope.key))


def arm() -> None:
    """Make the place deadly that the plan names; the handler looks after its own."""
    PLACES.get(PLAN.point, lambda: None)()


def strike() -> None:
    """Kill this process here, and with it its supervisor if a machine is to die. Once: nobody dies who comes here later."""
    if first_time("struck"):
        note("killed", point=PLAN.point, held=held())
        if PLAN.family:
            os.kill(os.getppid(), signal.SIGKILL)
        die()


def wait_for_company() -> None:
    """Until this process holds as many jobs as the plan wants, unsettled; else the test will see how few they were."""
    late = time.monotonic() + COMPANY
    flag("waiting").touch()
    while not flag("struck").exists() and len(held()) < PLAN.company and time.monotonic() < late:
        time.sleep(0.01)
    note("company", held=held())


def held() -> Sequence[str]:
    """The keys of what this process holds."""
    return keys_of(hands[-1].snapshot()) if hands else ()


def before(owner: Any, name: str, act: Callable[..., object]) -> None:
    """Let `act` have the arguments of each call of `owner.name` first."""
    original = getattr(owner, name)

    def acting(*args: Any, **more: Any) -> Any:
        act(*args, **more)
        return original(*args, **more)

    setattr(owner, name, acting)


def after(owner: Any, name: str, act: Callable[..., object]) -> None:
    """Let `act` have the arguments of each call of `owner.name` afterwards."""
    original = getattr(owner, name)

    def acting(*args: Any, **more: Any) -> Any:
        result = original(*args, **more)
        act(*args, **more)
        return result

    setattr(owner, name, acting)


def keys_of(receipts: Iterable[Receipt]) -> list[str]:
    return [key_of(receipt.delivery) for receipt in receipts]


def key_of(delivery: Delivery) -> str:
    return str(delivery.message.headers["postroom-key"])


def _received(_: Pipeline, delivery: Delivery) -> None:
    headers = delivery.message.headers
    note("received", key=key_of(delivery), id=headers["postroom-id"], copy=int(str(headers["postroom-copy"])))


def _is_victim(keys: Iterable[str]) -> bool:
    return PLAN.victim in keys


def _before_begin() -> None:
    before(Committer, "begin", lambda _, works: _strike_in_company(keys_of(works)))


def _before_the_handler() -> None:
    """The ledger has begun it, and all others of its round."""

    def answered(_: Pipeline, work: Work, answer: Answer | None) -> None:
        if isinstance(answer, Started):
            _strike_in_company([work.envelope.key])

    before(Pipeline, "answered", answered)


def _strike_in_company(keys: Iterable[str]) -> None:
    if _is_victim(keys):
        wait_for_company()
        strike()


def _before_the_ack() -> None:
    """Its outcome is committed: effect and `done`, or the retry's row."""
    before(Settler, "ack", lambda _, receipts: strike() if _is_victim(keys_of(receipts)) else None)


def _before_the_ack_is_sent() -> None:
    """The client has been told, and has not told its broker."""
    acked: list[bool] = []

    def told(_: object, deliveries: Sequence[Delivery]) -> None:
        if _is_victim(map(key_of, deliveries)):
            acked.append(True)

    def strike_once_told(*_: object) -> None:
        if acked:
            strike()

    for consumer in (RabbitConsumer, KafkaConsumer):
        before(consumer, "ack", told)
    before(rabbitmq_feed, "_acks", strike_once_told)
    before(ClassicFeed, "_commit", lambda _, __, places, **___: strike_once_told() if list(places) else None)
    after(ShareFeed, "_round", strike_once_told)


def _after_the_letter() -> None:
    """The broker has confirmed it, and has no ack of the original."""
    before(RabbitConsumer, "ack", lambda _, deliveries: strike() if _is_victim(map(key_of, deliveries)) else None)
    after(KafkaAdapter, "_bury", lambda *_: strike())


def _published() -> None:
    """The message is in the client's hands, or on its way, and nothing was heard of it."""
    before(Confirms, "_answered", lambda *_: strike())
    after(kafka_publisher._Batch, "produce", lambda *_, **__: strike())  # noqa: SLF001 - there is no other way between the two


def _confirmed() -> None:
    """All of the batch is confirmed, and nothing is marked."""
    before(rounds, "settle", lambda _, __, answers, *___: strike() if answers else None)


PLACES: dict[str, Callable[[], None]] = {
    "after delivery, before begin": _before_begin,
    "after begin, before the handler": _before_the_handler,
    "after the commit of effect and done, before the ack": _before_the_ack,
    "after the ack, before it is sent": _before_the_ack_is_sent,
    "after the re-arm, before the ack": _before_the_ack,
    "after the dead letter's confirm, before the ack": _after_the_letter,
    "relay: between publish and confirm": _published,
    "relay: between confirm and mark": _confirmed,
}
