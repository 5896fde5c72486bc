# mapped.py: orders that a Celery application and a Spring application send, done by Postroom.
import json
from dataclasses import dataclass

from postroom.adapters import Message, Queue
from postroom.consumers import Context, Jobs, MappedJob

CELERY = Queue(name="celery", foreign=True)  # theirs: consumed as it is, and nothing of it is declared, changed, or sent to
SPRING = Queue(name="spring.orders", foreign=True)

jobs = Jobs()


@dataclass
class Order:
    order_id: int


@jobs.mapper(queue=CELERY)
def from_celery(message: Message) -> MappedJob | None:
    if message.headers["task"] != "shop.tasks.ship":
        return None  # no job of ours, on purpose: acked, counted, logged
    _args, kwargs, _embed = json.loads(message.body)
    return MappedJob(type="ship", key=f"order-{kwargs['order_id']}", payload=kwargs)


@jobs.mapper(queue=SPRING)
def from_spring(message: Message) -> MappedJob:
    if message.properties.get("content_type") != "application/json":
        raise ValueError(f"not JSON but {message.properties.get('content_type')}")  # a dead letter, untouched
    order = json.loads(message.body)
    return MappedJob(type="invoice", key=f"order-{order['orderId']}", payload={"order_id": order["orderId"]})


@jobs.handler("ship", queue=CELERY)
def ship(order: Order, context: Context) -> None:
    context.logger.info("shipped order %d", order.order_id)


@jobs.handler("invoice", queue=SPRING)
def invoice(order: Order, context: Context) -> None:
    context.logger.info("invoiced order %d", order.order_id)
