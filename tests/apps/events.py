# events.py: what Debezium reads from another service's outbox table, and a topic of plain JSON.
import json
from dataclasses import dataclass

from postroom.adapters import Message, Queue
from postroom.consumers import Context, Jobs, MappedJob

ORDERS = Queue(name="outbox.event.order", foreign=True)  # others read it too; retries go to `outbox.event.order.retry`, which is ours
PAYMENTS = Queue(name="payments", foreign=True)

jobs = Jobs()


@dataclass
class Order:
    id: int


@jobs.mapper(queue=ORDERS)
def from_debezium(message: Message) -> MappedJob:
    """`id` is the event's; the record's key is the aggregate's. `eventType` needs table.fields.additional.placement=type:header:eventType there."""
    return MappedJob(type=str(message.headers["eventType"]), key=str(message.headers["id"]), payload=json.loads(message.body))


@jobs.mapper(queue=PAYMENTS)
def from_json(message: Message) -> MappedJob | None:
    payment = json.loads(message.body)
    return MappedJob(type="book-payment", key=f"payment-{payment['id']}", payload=payment) if payment["amount"] else None


@jobs.handler("OrderPlaced", queue=ORDERS)
def placed(order: Order, context: Context) -> None:
    context.logger.info("placed order %d", order.id)


@jobs.handler("book-payment", queue=PAYMENTS)
def book(payment: dict, context: Context) -> None:
    context.logger.info("booked %s", payment["amount"])
