"""RabbitMQ breaks while workers run. At the end: nothing lost, one effect for each key, nobody charged who did nothing wrong, and nobody deaf."""

from __future__ import annotations

import signal
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pika.exceptions import ChannelClosedByBroker
from sqlalchemy.engine import make_url

from postroom.adapters import Consumer, Queue, Unavailable, connect
from postroom.adapters.rabbitmq.topology import Topology
from postroom.consumers import Context
from postroom.consumers.status import status_of
from postroom.outbox import Outbox, Relay
from support.command import postroom
from support.inprocess import Office, office, working
from support.proxy import Proxy
from support.rabbit import Server, raw
from support.workers import Place, eventually, place, supervisor

APP = "besieged:jobs"
STOPPED_WITHIN = 60
"""Seconds: the bounds that a stop keeps add up to less than half of it."""
SOON = {"first": 0.05, "cap": 0.2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A queue of the test's own on a server that may break, behind a network that may break, and a database beside it."""

    at: Place
    server: Server
    proxy: Proxy
    name: str

    def url(self, options: str = "") -> str:
        """By way of the network that may break."""
        return self.server.url.replace(f":{self.server.port}", f":{self.proxy.port}") + options

    def enqueue(self, type_: str, *keys: str, **payload: object) -> None:
        outbox = Outbox(queue=self.name)
        with self.at.engine.begin() as connection:
            for key in keys:
                outbox.enqueue(connection, type_, payload, key=key)

    def works(
        self, *, at: Place | None = None, broker: str = "", concurrency: int = 2, **options: Any
    ) -> AbstractContextManager[subprocess.Popen[str]]:
        quick = {"poll_max": 0.1, "backoff": SOON, "outage": {"first": 0.05, "cap": 0.5}, "lease": 3.0}
        return supervisor(at or self.at, APP, broker=broker or self.url(), **{"concurrency": concurrency, "relay": quick, **options})

    def relay(self) -> None:
        """Send what is in the outbox, with no worker there."""
        Relay(self.at.engine, self.at.adapter).drain()
        assert not self.unsent()

    def ready(self) -> int:
        """How many jobs wait on the server."""
        return self.at.adapter.depth(self.name)["pending"]

    def unacked(self) -> int:
        """How many the server says are in somebody's hands."""
        return self._listed("messages_unacknowledged")

    def all_there(self) -> int:
        """How many are on the server, in somebody's hands or not."""
        return self._listed("messages")

    def _listed(self, what: str) -> int:
        lines = self.server.ctl("list_queues", "name", what).splitlines()
        return next(int(line.split()[1]) for line in lines if line.split()[0] == self.name)

    def effects(self) -> list[str]:
        return [key for (key,) in self.at.rows("SELECT key FROM effects ORDER BY key")]

    def unsent(self) -> int:
        return self.at.rows("SELECT count(*) FROM postroom_outbox WHERE status <> 'sent'")[0][0]

    def runs(self, key: str) -> list[int]:
        """The process of each start of its handler."""
        path = self.at.flag(f"runs-{key}")
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def hold(self, key: str) -> Path:
        """Its handler does not end while this flag is there."""
        self.at.flag(f"hold-{key}").touch()
        return self.at.flag(f"hold-{key}")

    def begin(self, key: str) -> Path:
        """Enqueue a job whose handler runs, when this returns, until the flag that it returns is gone."""
        held = self.hold(key)
        self.enqueue("guarded", key)
        eventually(lambda: self.runs(key))
        return held

    def assert_all_done(self, *keys: str, charged: int = 0) -> None:
        """These jobs, each with one effect; none waits anywhere; no more attempts were charged than these."""
        eventually(lambda: len(self.effects()) >= len(keys))
        eventually(lambda: not self.at.rows("SELECT 1 FROM postroom_ledger WHERE status <> 'done'"))
        eventually(lambda: not self.unsent() and not self.ready() and not self.all_there())
        assert self.effects() == sorted(keys)
        assert self.at.rows("SELECT sum(attempts) FROM postroom_ledger") == [(charged,)]
        assert self.at.adapter.depth(self.name)["failed"] == 0


@contextmanager
def made(tmp_path: Path, server: Server, database: str, name: str) -> Iterator[Site]:
    with Proxy(server.port) as proxy, place(database, tmp_path, broker=server.url) as at:
        at.adapter.ensure([Queue(name=name)])
        yield Site(at=at, server=server, proxy=proxy, name=name)


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"faults-{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv("APP_QUEUE", name)
    return name


@pytest.fixture
def site(tmp_path: Path, rabbitmq_server: Server, sqlite_database_url: str, name: str) -> Iterator[Site]:
    with made(tmp_path, rabbitmq_server, sqlite_database_url, name) as site:
        yield site


@pytest.fixture(params=["sqlite", "postgresql"])
def any_site(request: pytest.FixtureRequest, tmp_path: Path, rabbitmq_server: Server, name: str) -> Iterator[Site]:
    with made(tmp_path, rabbitmq_server, request.getfixturevalue(f"{request.param}_database_url"), name) as site:
        yield site


def numbered(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


def test_the_server_is_killed_and_started_with_jobs_ready_unacked_and_unconfirmed(any_site: Site) -> None:
    site = any_site
    with site.works(broker=site.url("?confirm_timeout=60")):
        unacked = [site.begin("unacked-0"), site.begin("unacked-1")]
        ready, unconfirmed = numbered("ready", 30), numbered("unconfirmed", 20)
        site.enqueue("brief", *ready)
        eventually(lambda: not site.unsent() and site.all_there() == 32)
        site.proxy.swallow_answers()
        site.enqueue("brief", *unconfirmed)
        eventually(lambda: site.all_there() == 52)
        assert site.unsent() == 20
        site.server.kill()
        site.proxy.speak()
        for held in unacked:
            held.unlink()
        eventually(lambda: len(site.effects()) == 2)
        site.server.start()
        site.assert_all_done("unacked-0", "unacked-1", *ready, *unconfirmed)
    assert [len(site.runs(key)) for key in ("unacked-0", "unacked-1")] == [1, 1]


def test_s023_what_was_sent_outlives_the_server_though_no_worker_was_there(site: Site) -> None:
    site.enqueue("brief", *numbered("order", 10))
    site.relay()
    site.server.kill()
    site.server.start()
    with site.works():
        site.assert_all_done(*numbered("order", 10))


def test_s013_under_an_alarm_rows_wait_jobs_go_on_and_afterwards_all_go_out_once(site: Site) -> None:
    with site.works() as process:
        held = site.begin("before")
        with site.server.alarmed():
            site.enqueue("brief", *numbered("order", 10))
            eventually(lambda: site.at.says("degraded, trying again: ") and site.at.says("low on memory"))
            held.unlink()
            eventually(lambda: site.effects() == ["before"] and not site.all_there())
            assert site.unsent() == 10
        site.assert_all_done("before", *numbered("order", 10))
        eventually(lambda: site.at.says("working again"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOPPED_WITHIN) == 0
    assert not site.at.says("'duplicates'")


def test_s013_a_worker_stops_in_time_under_an_alarm(site: Site) -> None:
    with site.works() as process:
        site.enqueue("brief", "first")
        eventually(lambda: site.effects() == ["first"])
        with site.server.alarmed():
            site.enqueue("brief", *numbered("order", 10))
            eventually(lambda: site.at.says("degraded, trying again: "))
            process.send_signal(signal.SIGTERM)
            assert process.wait(STOPPED_WITHIN) == 0
            assert site.unsent() == 10
    with site.works():
        site.assert_all_done("first", *numbered("order", 10))


def test_s014_a_queue_deleted_under_a_worker_is_made_again_and_served(site: Site) -> None:
    with site.works():
        held = site.begin("running")
        with raw(site.server.url) as channel:
            channel.queue_delete(site.name)
        eventually(lambda: site.at.says("cancelled the subscription"))
        site.enqueue("brief", *numbered("order", 5))
        held.unlink()
        site.assert_all_done("running", *numbered("order", 5))
    assert len(site.runs("running")) == 1


def test_s014_a_queue_that_comes_back_as_another_is_one_clear_line_and_nobody_is_ready_until_the_operator_mends_it(site: Site) -> None:
    ready = site.at.flag("ready")
    with site.works(processes=2):
        site.enqueue("brief", "before")
        eventually(lambda: site.effects() == ["before"] and ready.exists())
        replace_by_classic(site.server.url, site.name)
        told = f"not subscribed: queue '{site.name}': expected x-dead-letter-exchange '', but it is there with x-dead-letter-exchange none\n"
        eventually(lambda: site.at.says(told) and not ready.exists())
        with raw(site.server.url) as channel:
            channel.queue_delete(site.name)
        site.enqueue("brief", "after")
        site.assert_all_done("before", "after")
        eventually(ready.exists)


@pytest.mark.parametrize("part", ["", "#1"], ids=["a queue", "a partition"])
def test_s014_s015_a_worker_is_not_ready_while_it_can_not_read_one_of_its_queues_however_busy_it_is_with_another(
    rabbitmq_server: Server, sqlite_database_url: str, name: str, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    with office(sqlite_database_url, connect(f"{rabbitmq_server.url}?partitions=2"), name=f"{name}-busy") as here:
        queue, lost = Queue(name=name, ordered=bool(part)), f"{name}{part}"
        busy, done = keep_busy(here), note(here, queue)
        with working(here.worker()) as shift:
            eventually(shift.worker.ready)
            replace_by_classic(rabbitmq_server.url, lost)
            told = f"not subscribed: queue '{lost}': expected x-dead-letter-exchange '', but it is there with x-dead-letter-exchange none"
            eventually(lambda: told in caplog.messages)
            so_far = len(busy)
            eventually(lambda: len(busy) > so_far + 5)
            assert not shift.worker.ready()
            assert caplog.messages.count(told) == 1
            with raw(rabbitmq_server.url) as channel:
                channel.queue_delete(lost)
            eventually(shift.worker.ready)
            here.enqueue("note", "after", queue=queue)
            eventually(lambda: done == ["after"])


def test_s014_another_queue_that_comes_between_the_look_and_the_subscription_is_not_read(
    rabbitmq_server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def look_too_early(topology: Topology, channel: Any, name: str, *, partly: bool) -> Any:
        found = restore(topology, channel, name, partly=partly)
        looked.append(name)
        if len(looked) == 1:
            replace_by_classic(rabbitmq_server.url, name)
        return found

    restore = Topology.restore
    monkeypatch.setattr(Topology, "restore", look_too_early)
    with closing(connect(rabbitmq_server.url)) as adapter:
        adapter.ensure([Queue(name=name)])
        consumer = adapter.consume({name: 1}, group="g", prefetch=5, name="w")
        assert consumer.receive(1, 0) == []
        with raw(rabbitmq_server.url) as channel:
            channel.queue_delete(name)
        eventually(lambda: [trouble for trouble in _troubles(consumer) if "expected x-" in trouble])
        with raw(rabbitmq_server.url) as channel:
            assert channel.queue_declare(name, passive=True).method.consumer_count == 0


def _troubles(consumer: Consumer) -> Sequence[str]:
    with suppress(Unavailable):
        consumer.receive(1, 0.1)
    return consumer.troubles


def test_s015_a_worker_without_its_server_is_not_ready_until_it_is_back(rabbitmq_server: Server, sqlite_database_url: str, name: str) -> None:
    with Proxy(rabbitmq_server.port) as proxy:
        url = rabbitmq_server.url.replace(f":{rabbitmq_server.port}", f":{proxy.port}")
        with office(sqlite_database_url, connect(url), name=name) as here:
            done = note(here, Queue(name=name))
            with working(here.worker()) as shift:
                eventually(shift.worker.ready)
                proxy.refuse()
                eventually(lambda: not shift.worker.ready())
                proxy.accept()
                eventually(shift.worker.ready)
                here.enqueue("note", "after")
                eventually(lambda: done == ["after"])


def keep_busy(here: Office) -> list[str]:
    """Have a job in the office's own queue that makes the next one, for ever; return where the keys are noted."""
    done: list[str] = []

    @here.jobs.handler("again", queue=here.name)
    def again(_: Any, context: Context) -> None:
        done.append(context.job.key)
        context.enqueue("again", {}, key=f"{len(done)}")

    here.adapter.ensure([Queue(name=here.name)])
    here.enqueue("again", "0")
    return done


def note(here: Office, queue: Queue) -> list[str]:
    """Return where the keys of this queue's jobs are noted."""
    done: list[str] = []
    here.jobs.handler("note", queue=queue)(lambda _, context: done.append(context.job.key))
    return done


def replace_by_classic(url: str, name: str) -> None:
    """Until it has been quicker than the worker, who makes its queue again."""
    while True:
        with raw(url) as channel, suppress(ChannelClosedByBroker):
            channel.queue_delete(name)
            channel.queue_declare(name, durable=True)
            return


def test_a_server_that_stands_still_for_longer_than_the_heartbeat_is_left_and_found_again(any_site: Site) -> None:
    site = any_site
    with site.works(broker=site.url("?heartbeat=1&stack_timeout=2&confirm_timeout=2")):
        held = site.begin("running")
        with site.server.paused():
            site.enqueue("brief", *numbered("order", 5))
            eventually(lambda: site.at.says(f"lost the subscription to {site.name}"))
            held.unlink()
            eventually(lambda: site.effects() == ["running"])
        site.assert_all_done("running", *numbered("order", 5))
    assert len(site.runs("running")) == 1


@pytest.mark.parametrize("command", ["close_connection", "close_all_connections"])
def test_s002_a_connection_that_the_operator_closes_costs_neither_the_job_that_runs_nor_an_attempt(site: Site, command: str) -> None:
    with site.works():
        held = site.begin("running")
        if command == "close_all_connections":
            site.server.ctl(command, "maintenance")
        else:
            for pid in site.server.ctl("list_connections", "pid").split()[1:]:
                site.server.ctl(command, pid, "maintenance")
        eventually(lambda: site.at.says("maintenance"))
        site.enqueue("brief", *numbered("order", 5))
        eventually(lambda: len(site.effects()) == 5)
        held.unlink()
        site.assert_all_done("running", *numbered("order", 5))
    assert len(site.runs("running")) == 1


def test_s003_a_late_ack_from_before_a_reconnection_settles_nobody_elses_job(site: Site) -> None:
    with site.works(broker=site.url("?connection_name=worker")):
        first = site.begin("first")
        site.proxy.cut()
        second = site.begin("second")
        first.unlink()
        eventually(lambda: site.effects() == ["first"])
        eventually(lambda: not site.unsent() and site.unacked() == 1)
        assert site.runs("second") == site.runs("first")
        second.unlink()
        site.assert_all_done("first", "second")
    assert not site.at.says("unknown delivery tag")


def test_s015_a_worker_whose_connections_were_reset_three_times_is_not_deaf(site: Site) -> None:
    with site.works():
        site.enqueue("brief", "before")
        eventually(lambda: site.effects() == ["before"])
        for _ in range(3):
            eventually(lambda: site.proxy.connections)
            site.proxy.cut()
        site.enqueue("brief", *numbered("order", 5))
        site.assert_all_done("before", *numbered("order", 5))


def test_a_worker_that_lost_only_the_server_keeps_its_job_and_another_waits_for_it(any_site: Site) -> None:
    site = any_site
    with site.works(lease=3.0):
        held = site.begin("order")
        with site.works(broker=site.server.url, lease=3.0):
            site.proxy.refuse()
            eventually(lambda: site.at.rows("SELECT 1 FROM postroom_outbox WHERE key = 'order' AND status <> 'sent'"))  # the other's deferred copy
            held.unlink()
            site.assert_all_done("order")
    assert len(site.runs("order")) == 1


@pytest.mark.parametrize("ends", [("1", "2"), ("2", "1")], ids=["the first attempt ends first", "the second attempt ends first"])
def test_s107_a_worker_cut_off_from_everything_is_fenced_by_the_second_attempt(
    tmp_path: Path, rabbitmq_server: Server, postgresql_database_url: str, name: str, ends: Sequence[str]
) -> None:
    database = make_url(postgresql_database_url)
    with made(tmp_path, rabbitmq_server, postgresql_database_url, name) as site, Proxy(database.port or 0) as line:
        cut_off = replace(site.at, url=database.set(port=line.port).render_as_string(hide_password=False))
        held = {attempt: site.hold(f"order-{attempt}") for attempt in ends}
        with site.works(at=cut_off, lease=1.5, relay=None):
            site.enqueue("guarded", "order")
            site.relay()
            eventually(lambda: site.runs("order"))
            with site.works(broker=site.server.url):
                site.proxy.refuse()
                line.refuse()
                eventually(lambda: len(site.runs("order")) == 2)
                held[ends[0]].unlink()
                eventually(lambda: site.at.says("can't be reached") if ends[0] == "1" else site.effects())
                line.accept()
                held[ends[1]].unlink()
                eventually(lambda: site.at.says("attempt 1 is no longer ours"))
                site.assert_all_done("order", charged=1)
        assert site.at.rows("SELECT attempt FROM effects") == [(2,)]


def test_s001_a_handler_far_longer_than_the_heartbeat_runs_once_on_one_connection(site: Site) -> None:
    with site.works(broker=site.url("?heartbeat=1")):
        site.enqueue("guarded", "order", seconds=6)
        eventually(lambda: site.runs("order"))
        assert "1" in site.server.ctl("list_connections", "timeout").split()
        site.assert_all_done("order")
    assert len(site.runs("order")) == 1
    assert not site.at.says("lost")


@contextmanager
def impatient(server: Server) -> Iterator[None]:
    """A server that takes a delivery back after a second.: 4.3 cancels the subscription then, others close the channel."""
    try:
        server.environment("consumer_timeout", "1000")
        server.environment("channel_tick_interval", "200")
        yield
    finally:
        server.environment("consumer_timeout", "1800000")
        server.environment("channel_tick_interval", "60000")


def taken_back(site: Site) -> bool:
    """Whether a worker has said that it lost its subscription to that."""
    return site.at.says("delivery acknowledgement on channel") or site.at.says("RabbitMQ cancelled the subscription")


def test_s005_a_handler_beyond_the_consumer_timeout_runs_once_and_its_worker_goes_on(site: Site) -> None:
    with impatient(site.server), site.works(processes=2, concurrency=1):
        held = site.begin("long")
        eventually(lambda: taken_back(site))
        site.enqueue("brief", *numbered("order", 5))
        eventually(lambda: len(site.effects()) == 5)
        held.unlink()
        site.assert_all_done("long", *numbered("order", 5))
    assert len(site.runs("long")) == 1


def test_s005_a_handler_that_never_ends_uses_up_its_attempts_and_no_worker(site: Site) -> None:
    with impatient(site.server), site.works(processes=2, concurrency=2):
        site.enqueue("endless", "stuck", seconds=3600)
        eventually(lambda: taken_back(site))
        eventually(lambda: site.at.adapter.depth(site.name)["failed"] == 1)
        site.enqueue("brief", "after")
        eventually(lambda: site.effects() == ["after"])
        eventually(lambda: not site.unsent() and not site.all_there())
    entry = site.at.entry("stuck")
    assert (entry.status, entry.attempts, entry.last_error) == ("failed", 2, "timed out after 2 s")
    assert len(site.runs("stuck")) == 2
    [letter] = site.at.adapter.dead_letters(site.name).list()
    assert (letter.attempts, letter.reason) == (2, "given up after 2 attempts: timed out after 2 s")


def test_the_servers_own_count_of_deliveries_is_told_by_status_and_charges_nobody(site: Site) -> None:
    site.enqueue("brief", "order")
    site.relay()
    with raw(site.server.url) as channel:
        for _ in range(2):
            method, _, _ = channel.basic_get(site.name)
            channel.basic_nack(method.delivery_tag)
    with site.works():
        site.assert_all_done("order")
    [status] = status_of(site.at.engine, "order")
    assert (status.attempts, status.redeliveries) == (0, 2)
    assert "REDELIVERIES" in postroom("--database", site.at.url, "--broker", site.server.url, "status", "order", cwd=site.at.flags).stdout
