"""The servers of compose.yaml answer, and the fixtures that start them keep their word."""

import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import docker
import pika
import pytest
import sqlalchemy
from confluent_kafka import Consumer, Producer
from docker.models.containers import Container
from sqlalchemy.exc import DBAPIError

from support import services
from support.databases import connected, fresh_database
from support.workers import eventually


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
    producer = Producer({"bootstrap.servers": kafka_bootstrap})
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


def test_each_fresh_database_is_empty_whatever_the_last_test_left(server_url: str) -> None:
    for _ in range(2):
        with fresh_database(server_url) as url, connected(url) as connection:
            assert sqlalchemy.inspect(connection).get_table_names() == []
            connection.exec_driver_sql("CREATE TABLE jobs (id INT)")


def test_fresh_databases_at_the_same_time_are_different_ones(server_url: str) -> None:
    with fresh_database(server_url) as first, fresh_database(server_url) as second:
        assert first != second


def test_a_fresh_database_goes_although_somebody_holds_a_transaction_in_it(server_url: str) -> None:
    with ExitStack() as forgotten:
        with fresh_database(server_url) as url:
            connection = forgotten.enter_context(connected(url))
            connection.exec_driver_sql("CREATE TABLE jobs (id INT)")
            connection.exec_driver_sql("BEGIN")
            connection.exec_driver_sql("SELECT * FROM jobs")
        connection.invalidate()  # what it held is gone: closing it would fail
        with pytest.raises(DBAPIError), connected(url):
            pass


def test_a_database_of_each_kind_is_there_to_be_asked_for(database_url: str) -> None:
    assert database_url.partition(":")[0] in {"sqlite", "postgresql", "mysql"}


def test_each_service_has_an_image_that_can_be_built_here() -> None:
    images = re.compile(r"^(\w+_IMAGE)=postroom/", re.MULTILINE)
    assert set(images.findall((services.COMPOSE / "local.env").read_text())) == {f"{name.upper()}_IMAGE" for name in services.SERVICES}
    assert set(services.SERVICES) == set(services.definitions({}))


def test_the_image_of_one_run_is_chosen_by_a_variable(docker_engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    images = services.present_images()
    other = next(image for name, image in images.items() if name != "RABBITMQ_IMAGE")
    monkeypatch.setenv("RABBITMQ_IMAGE", other)
    assert services.present_images() == {**images, "RABBITMQ_IMAGE": other}
    monkeypatch.setenv("RABBITMQ_IMAGE", "postroom/rabbitmq:never-built")
    assert "RABBITMQ_IMAGE" not in services.present_images()


def test_the_tests_of_the_matrix_run_with_the_image_of_their_version(docker_engine: None) -> None:
    images = services.present_images()
    if "RABBITMQ_IMAGE" not in images:
        services.unavailable("no image for rabbitmq is here")
    version = images["RABBITMQ_IMAGE"].rpartition(":")[2].removesuffix("-management")
    command = [services.COMPOSE / "test-on-rabbitmq", version, "sh", "-c", 'echo "$RABBITMQ_IMAGE" "$@"', "sh", "--its-own"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said.splitlines()[-1].startswith(images["RABBITMQ_IMAGE"])
    assert said.splitlines()[-1].endswith("--its-own -k rabbitmq")


def test_each_version_of_the_matrix_has_a_recipe() -> None:
    makefile = (services.COMPOSE.parent / "Makefile").read_text()
    recipes = (services.COMPOSE / "build-images").read_text()
    versions = re.search(r"^MATRIX \?= (.*)$", makefile, re.MULTILINE)[1].split()
    assert versions == ["3.10", "4.0", "newest"]
    assert all(f"rabbitmq:{version}" in recipes for version in versions)


@pytest.fixture
def idle_container(docker_engine: None) -> Iterator[Callable[[int], Container]]:
    """Makes a container, never started, as a test session with this process id would have left it."""
    client = docker.from_env()
    image = next(iter(services.present_images().values()))
    made = []

    def make(pid: int) -> Container:
        made.append(client.containers.create(image, labels={services.OWNER_LABEL: f"{socket.gethostname()}:{pid}"}))
        return made[-1]

    yield make
    for container in made:
        with suppress(docker.errors.NotFound):
            container.remove()
    client.close()


def test_containers_of_a_test_session_that_was_killed_are_removed(idle_container: Callable[[int], Container]) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    container = idle_container(ended.pid)
    services.require_engine()
    eventually(lambda: is_gone(container))  # another session may be the one that removes it, and not be done yet


def is_gone(container: Container) -> bool:
    try:
        container.reload()
    except docker.errors.NotFound:
        return True
    return False


def test_containers_of_a_test_session_that_runs_beside_this_one_are_kept(idle_container: Callable[[int], Container]) -> None:
    container = idle_container(os.getppid())
    services.require_engine()
    container.reload()


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")


@pytest.mark.usefixtures("no_engine")
def test_without_docker_a_test_is_skipped_with_the_command_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no Docker engine answers; `make images`"):
        services.require_engine()


@pytest.mark.usefixtures("no_engine")
def test_without_docker_a_test_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no Docker engine answers"):
        services.require_engine()
