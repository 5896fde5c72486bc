"""The servers under test: single services of compose/compose.yaml, each started at most once in a test session.

Only what is asked for is started. Where there is no Docker engine or no image, the tests that ask are skipped with the
reason and the command that mends it; with CI=true they fail.
"""

import os
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import docker
import pika
import pytest
import sqlalchemy
import yaml
from confluent_kafka.admin import AdminClient
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from .databases import connected

COMPOSE = Path(__file__).parents[2] / "compose"
OWNER_LABEL = "postroom.tests.owner"
START_SECONDS = 120
FIRST_PORT = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """How to reach a service of compose.yaml: its URL, made of its environment and its port here, and a call that needs it to be ready."""

    name: str
    url: str
    speaks: Callable[[str], object]


def _select(url: str) -> None:
    with connected(url) as connection:
        connection.execute(sqlalchemy.select(1))


SERVICES = {
    service.name: service
    for service in (
        Service(
            name="rabbitmq",
            url="amqp://{RABBITMQ_DEFAULT_USER}:{RABBITMQ_DEFAULT_PASS}@127.0.0.1:{port}",
            speaks=lambda url: pika.BlockingConnection(pika.URLParameters(url)).close(),
        ),
        Service(
            name="kafka",
            url="localhost:{port}",
            speaks=lambda url: AdminClient({"bootstrap.servers": url, "log_level": 0}).list_topics(timeout=5),
        ),
        Service(
            name="postgres",
            url="postgresql://{POSTGRES_USER}:{POSTGRES_PASSWORD}@127.0.0.1:{port}/{POSTGRES_DB}",
            speaks=_select,
        ),
        Service(
            name="mariadb",
            url="mysql://root:{MARIADB_ROOT_PASSWORD}@127.0.0.1:{port}/{MARIADB_DATABASE}",
            speaks=_select,
        ),
    )
}


def unavailable(reason: str) -> NoReturn:
    """Ends the asking test: skipped, or in CI failed."""
    message = f"{reason}; `make images` gets what is missing and, as root on Debian, starts a Docker engine"
    if os.environ.get("CI") == "true":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def require_engine() -> None:
    """A Docker engine answers, and the containers of test sessions that were killed are gone from it."""
    # Asked through the command: the library leaks a socket when nobody answers, which would be an error at the end of the run.
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], check=False, capture_output=True).returncode:
        unavailable("no Docker engine answers")
    client = docker.from_env()
    _remove_leftovers(client)
    client.close()


def present_images() -> Mapping[str, str]:
    """By the names of their variables in compose.yaml, for the services that have an image here."""
    listed = subprocess.run([COMPOSE / "choose-images", "--present"], check=True, capture_output=True, text=True).stdout
    return dict(line.split("=", 1) for line in listed.splitlines())


def definitions(variables: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The services of compose.yaml by name, with these variables in place of its defaults."""
    text = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: variables.get(found[1], found[2]), (COMPOSE / "compose.yaml").read_text())
    return yaml.safe_load(text)["services"]


@contextmanager
def running(name: str) -> Iterator[str]:
    """The URL of this service, ready, in a container that is removed at the end."""
    service = SERVICES[name]
    images = present_images()
    if f"{name.upper()}_IMAGE" not in images:
        unavailable(f"no image for {name} is here")
    port = free_port()
    wanted = definitions({**images, f"{name.upper()}_PORT": str(port)})[name]
    url = service.url.format(port=port, **wanted["environment"])
    with serving(wanted, {wanted["ports"][0].rpartition(":")[2]: port}, lambda: service.speaks(url)):
        yield url


@contextmanager
def serving(wanted: dict[str, Any], ports: Mapping[str, int], speak: Callable[[], object]) -> Iterator[None]:
    """A service that is defined so, once it answers; its ports can be reached through these of ours."""
    with _container(wanted, ports) as container:
        _wait_until_ready(container, speak)
        yield


def _container(wanted: dict[str, Any], ports: Mapping[str, int]) -> DockerContainer:
    # We remove our containers ourselves: Testcontainers' own reaper is one more image to pull.
    testcontainers_config.ryuk_disabled = True
    container = DockerContainer(wanted["image"], command=wanted.get("command")).with_envs(**wanted["environment"])
    # On loopback only, and fixed ports, so that they stay the same when a test restarts the container.
    container.ports.update({inner: ("127.0.0.1", outer) for inner, outer in ports.items()})
    # The plain bridge, whatever network this process may be in if it is in a container itself.
    return container.with_kwargs(network="bridge", labels={OWNER_LABEL: f"{socket.gethostname()}:{os.getpid()}"})


def _wait_until_ready(container: DockerContainer, speak: Callable[[], object]) -> None:
    wrapped = container.get_wrapped_container()
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with suppress(Exception):  # whatever a client raises while its server starts
            speak()
            return
        wrapped.reload()
        if wrapped.status != "running":
            break
        time.sleep(0.1)
    pytest.fail(f"{container.image} did not start:\n{wrapped.logs(tail=50).decode()}", pytrace=False)


def _remove_leftovers(client: docker.DockerClient) -> None:
    for container in client.containers.list(all=True, filters={"label": OWNER_LABEL}, ignore_removed=True):
        host, _, pid = container.labels[OWNER_LABEL].rpartition(":")
        if host == socket.gethostname() and not Path("/proc", pid).exists():
            with suppress(docker.errors.APIError):  # another session is removing it at this moment
                container.remove(force=True, v=True)


def free_port() -> int:
    """A port that nobody listens at. None that the system gives to clients: one might have it while its server is down, or before it is up."""
    for_clients = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = FIRST_PORT + secrets.randbelow(for_clients - FIRST_PORT)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
