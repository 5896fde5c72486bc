"""Jobs of one ordering key, one of which may be given up; and how its dead letter gets lost."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from sqlalchemy import select

from postroom.adapters.seam import Queue
from postroom.consumers import Context, DeadLetterOffice
from postroom.outbox import Outbox
from postroom.outbox.tables import holdups

from .inprocess import Office
from .rabbit import raw


class Line:
    """Jobs of one ordering key, and what became of them."""

    def __init__(self, here: Office, *, broken: str = "") -> None:
        self.here = here
        self.queue = Queue(name=here.name, ordered=True)
        self.broken = broken
        self.done: list[str] = []
        here.jobs.handler("t", queue=self.queue, max_attempts=1)(self.handle)

    def handle(self, _: Any, context: Context) -> None:
        if context.job.key == self.broken:
            raise ValueError("no such address")
        self.done.append(context.job.key)

    def enqueue(self, *keys: str, type_: str = "t", ordering_key: str = "line") -> None:
        for key in keys:
            with self.here.engine.begin() as connection:
                Outbox(queue=self.queue).enqueue(connection, type_, {}, key=key, ordering_key=ordering_key)

    @property
    def office(self) -> DeadLetterOffice:
        return self.here.dead_letter_office

    def held(self) -> list[str]:
        """The jobs that hold the key on a broker."""
        with self.here.engine.connect() as connection:
            return list(connection.execute(select(holdups.c.job).order_by(holdups.c.seq)).scalars())

    def purge(self, request: pytest.FixtureRequest) -> None:
        """Empty the dead-letter queue, as an operator of the broker does, or a topic's retention."""
        match self.here.adapter.capabilities.name:
            case "rabbitmq":
                with raw(request.getfixturevalue("rabbitmq_url")) as channel:
                    channel.queue_purge(f"{self.here.name}.dlq")
            case "kafka":
                forget_all(request.getfixturevalue("kafka_bootstrap"), f"{self.here.name}.dlq")
            case _:
                dead = self.here.adapter.dead_letters(self.here.name)
                dead.take([letter.id for letter in dead.list()])


def forget_all(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    parts = admin.list_topics(topic, timeout=30).topics[topic].partitions
    ends = admin.list_offsets({TopicPartition(topic, part): OffsetSpec.latest() for part in parts})
    gone = [TopicPartition(part.topic, part.partition, end.result(30).offset) for part, end in ends.items()]
    for answer in admin.delete_records(gone).values():
        answer.result(30)
