import re
import time
from collections.abc import Iterator

import pika
import pytest
import sqlalchemy
from confluent_kafka import Consumer, Producer
from support import services
from support.databases import connected, fresh_database


def test_rabbitmq_gives_back_what_it_was_given(rabbitmq_url: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq_url))
    channel = connection.channel()
    channel.queue_declare("jobs", durable=True, arguments={"x-queue-type": "quorum"})
    channel.confirm_delivery()
    channel.basic_publish("", "jobs", b"1", mandatory=True)
    delivery, _, body = channel.basic_get("jobs", auto_ack=True)
    connection.close()
    assert (delivery.redelivered, body) == (False, b"1")


def test_kafka_gives_back_what_it_was_given(kafka_bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "acks": "all"})
    producer.produce("jobs", b"1")
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": kafka_bootstrap, "group.id": "test", "auto.offset.reset": "earliest"})
    consumer.subscribe(["jobs"])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert message.value() == b"1"


@pytest.fixture(params=["postgres", "mariadb"])
def server_url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(f"{request.param}_url")


def test_a_fresh_database_is_empty_and_a_test_s_own(server_url: str) -> None:
    with fresh_database(server_url) as first, fresh_database(server_url) as second:
        with connected(first) as connection:
            connection.exec_driver_sql("CREATE TABLE jobs (id INT)")
        with connected(second) as connection:
            assert sqlalchemy.inspect(connection).get_table_names() == []


def test_a_fresh_database_goes_even_if_somebody_holds_a_transaction_in_it(server_url: str) -> None:
    with fresh_database(server_url) as url:
        left_open = connected(url)
        connection = left_open.__enter__()
        connection.exec_driver_sql("CREATE TABLE jobs (id INT)")
        connection.exec_driver_sql("BEGIN")
        connection.exec_driver_sql("SELECT * FROM jobs")
    with pytest.raises(sqlalchemy.exc.DBAPIError), connected(url):
        pass
    connection.invalidate()
    left_open.__exit__(None, None, None)


def test_a_fresh_database_costs_a_test_next_to_nothing(server_url: str) -> None:
    started = time.monotonic()
    for _ in range(10):
        with fresh_database(server_url):
            pass
    print((time.monotonic() - started) / 10)
