# shop.py: checkout promises a receipt, a worker sends it.
import os
import sys
from dataclasses import dataclass

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from postroom.consumers import Context, Jobs
from postroom.outbox import Outbox


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "shop_orders"
    id: Mapped[int] = mapped_column(primary_key=True)


class SentEmail(Base):
    __tablename__ = "shop_sent_emails"
    number: Mapped[int] = mapped_column(primary_key=True)  # so a second email for an order would be seen, not refused
    order_id: Mapped[int]


@dataclass
class Receipt:
    order_id: int


outbox = Outbox(queue="emails")
jobs = Jobs()


def checkout(session: Session, order_id: int) -> None:  # in the service's own transaction
    session.add(Order(id=order_id))
    outbox.enqueue(session, "send-receipt", Receipt(order_id), key=f"order-{order_id}")


@jobs.handler("send-receipt", queue="emails", max_attempts=5, timeout=10)
def send_receipt(receipt: Receipt, context: Context) -> None:
    context.session.add(SentEmail(order_id=receipt.order_id))  # commits together with `done`, or not at all


if __name__ == "__main__":
    engine = create_engine(os.environ.get("POSTROOM_DATABASE", "sqlite:///postroom.db"))
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        checkout(session, int(sys.argv[1]))
