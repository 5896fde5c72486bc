"""Kafka breaks, or the group changes, while workers run. At the end: nothing lost, one effect for each key, nobody charged who did nothing wrong."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table, insert

from postroom.adapters import ConfigurationError, Message, Queue, Unavailable, connect
from postroom.consumers import Context, Jobs, Worker, WorkerSettings
from postroom.outbox import Outbox
from postroom.outbox.options import RelayOptions
from postroom.outbox.relay import Relay
from support.command import postroom
from support.inprocess import working
from support.kafka_server import Server
from support.workers import Place, children_of, eventually, place, supervisor

APP = "faulted:jobs"
STORM = 60.0
"""Seconds, with a join or a leave every two."""
both = pytest.mark.parametrize("mode", ["classic", "share"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A topic of the test's own, and a database beside it."""

    at: Place
    server: Server
    name: str
    mode: str

    def url(self, **options: object) -> str:
        quick = {} if self.mode == "share" else {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
        chosen = {"mode": self.mode, **quick, **options}
        return f"kafka://{self.server.address}?" + "&".join(f"{name}={value}" for name, value in chosen.items())

    def declare(self, **options: object) -> None:
        with closing(connect(self.url(**options))) as adapter:
            adapter.ensure([Queue(name=self.name)])

    def enqueue(self, type_: str, numbers: range, **payload: object) -> None:
        outbox = Outbox(queue=self.name)
        with self.at.engine.begin() as connection:
            for number in numbers:
                outbox.enqueue(connection, type_, payload, key=f"order-{number}")

    def works(self, *, broker: str = "", concurrency: int = 2, **options: Any):
        relay = {"lease": 3.0, "poll_max": 0.2}  # who is killed or stopped keeps its lanes of the outbox for so long
        return supervisor(self.at, APP, broker=broker or self.url(), concurrency=concurrency, relay=relay, **options)

    def depth(self) -> int:
        with closing(connect(self.url())) as adapter:
            depth = adapter.depth(self.name)
        return depth["pending"] + depth["running"]

    def effects(self) -> int:
        return self.at.rows("SELECT count(*) FROM effects")[0][0]

    def sent(self) -> int:
        return self.at.rows("SELECT count(*) FROM postroom_outbox WHERE status = 'sent'")[0][0]

    def started(self, key: str) -> list[int]:
        """The processes that have begun to handle it."""
        return [int(path.name.split("-")[-2]) for path in self.at.flags.glob(f"started-{key}-*")]

    def let_end(self, key: str) -> None:
        self.at.flag(f"let-{key}-end").touch()

    def assert_all_done(self, number: int, *, charged: int = 0) -> None:
        """So many jobs, each with one effect; none waits anywhere; no more attempts were charged than these."""
        eventually(lambda: self.effects() >= number)
        eventually(lambda: not self.at.rows("SELECT 1 FROM postroom_ledger WHERE status <> 'done'"))
        eventually(lambda: not self.at.rows("SELECT 1 FROM postroom_outbox WHERE status <> 'sent'") and self.depth() == 0)
        assert self.at.rows("SELECT count(*), count(DISTINCT key) FROM effects") == [(number, number)]
        assert self.at.rows("SELECT count(*), sum(attempts) FROM postroom_ledger") == [(number, charged)]


@pytest.fixture
def site(kafka_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Site]]:
    with ExitStack() as stack:

        def make(database: str, mode: str, *, partitions: int = 4, lease: float = 30.0) -> Site:
            name = f"work-{uuid.uuid4().hex[:8]}"
            monkeypatch.setenv("APP_QUEUE", name)
            monkeypatch.setenv("APP_LEASE", str(lease))
            made = Site(at=stack.enter_context(place(database, tmp_path)), server=kafka_server, name=name, mode=mode)
            made.declare(partitions=partitions)
            return made

        yield make


def child_of(process: subprocess.Popen[str]) -> int:
    (child,) = eventually(lambda: children_of(process.pid))
    return child


@both
def test_jobs_that_were_ready_in_flight_and_unconfirmed_when_the_broker_was_killed_are_all_done_once(site, sqlite_database_url, mode):
    made = site(sqlite_database_url, mode, lease=15)
    made.enqueue("long", range(2))
    made.enqueue("brief", range(2, 500))
    with made.works() as process:
        eventually(lambda: made.started("order-0") and made.started("order-1"))  # in flight; no lane is left for the others
        eventually(lambda: made.sent() >= 500)
        children = children_of(process.pid)
        made.enqueue("brief", range(500, 3000))
        with ThreadPoolExecutor(1) as pool:
            eventually(lambda: made.sent() > 500)
            killing, number = pool.submit(made.server.kill), 3000  # while the relay produces, however quick it is
            while not killing.done():
                made.enqueue("brief", range(number, number := number + 5))
            killing.result()
        assert made.sent() < number
        made.server.start()
        eventually(lambda: made.sent() == number)
        made.let_end("order-0")
        made.let_end("order-1")
        made.assert_all_done(number)
        assert children_of(process.pid) == children


@both
def test_a_storm_of_rebalances_repeats_no_effect_charges_nobody_and_does_not_stop_the_work(site, postgresql_database_url, mode):
    made, members, number = site(postgresql_database_url, mode, partitions=6, lease=15), [], 0
    with ExitStack() as stack:
        seen = stack.enter_context(made.server.watched(made.name, made.name)) if mode == "classic" else []
        stack.enter_context(made.works())
        for step in range(round(STORM / 2)):
            due, before = time.monotonic() + 2, made.effects()
            made.enqueue("brief", range(number, number := number + 60), seconds=0.02)
            if step % 4 < 2:
                members.append(stack.enter_context(made.works()))
            else:
                members.pop(0).send_signal(signal.SIGTERM)
            eventually(lambda before=before: made.effects() > before)
            time.sleep(max(0.0, due - time.monotonic()))  # the pace of the storm
        made.assert_all_done(number)
    assert not goes_back(seen)


def goes_back(seen: Sequence[Mapping[int, int]]) -> list[tuple[Mapping[int, int], Mapping[int, int]]]:
    """Where an offset of a group was lower than before."""
    return [(before, after) for before, after in itertools.pairwise(seen) if any(after.get(part, -1) < offset for part, offset in before.items())]


def test_s029_a_handler_that_takes_longer_than_the_poll_interval_keeps_its_partition_and_runs_once(site, sqlite_database_url):
    made = site(sqlite_database_url, "classic", partitions=1)
    with made.works(broker=made.url(**{"max.poll.interval.ms": 6000}), concurrency=2) as process:
        made.enqueue("long", range(1))
        eventually(lambda: made.started("order-0"))
        began = time.monotonic()
        for number in itertools.count(1):
            made.enqueue("brief", range(number, number + 1))
            eventually(lambda number=number: made.effects() == number)
            if time.monotonic() - began > 8:
                break
            time.sleep(0.5)
        assert made.server.members(made.name) == 1
        assert made.server.offsets(made.name, made.name) == {0: 0}
        made.let_end("order-0")
        made.assert_all_done(number + 1)
        assert made.started("order-0") == children_of(process.pid)
        assert not made.at.says("were lost to others")


def test_processes_with_names_of_their_own_share_the_work_and_who_takes_a_dead_one_s_place_goes_on_without_a_rebalance(site, sqlite_database_url):
    made, number = site(sqlite_database_url, "classic", partitions=2), 0
    broker = made.url(**{"group.instance.id": "mail-{process}", "session.timeout.ms": 120_000})
    with made.works(broker=broker, processes=2, concurrency=1) as process:
        eventually(lambda: made.server.members(made.name) == 2)
        while len(children := set(children_of(process.pid))) < 2 or len(made.at.rows("SELECT DISTINCT pid FROM effects")) < 2:
            made.enqueue("brief", range(number, number := number + 20))
            made.assert_all_done(number)
        os.kill(min(children), signal.SIGKILL)
        made.enqueue("brief", range(number, number := number + 40))
        made.assert_all_done(number)  # long before the session of the dead one is over
        assert made.server.members(made.name) == 2
        assert len(made.at.rows("SELECT DISTINCT pid FROM effects")) == 3


def test_a_name_that_the_processes_would_have_to_share_is_refused(kafka_server, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW.format(name=f"work-{uuid.uuid4().hex[:8]}"))
    assert postroom("schema", "create", cwd=tmp_path).returncode == 0
    broker = f"kafka://{kafka_server.address}?group.instance.id=mail"
    refused = postroom("work", "slow:jobs", "--drain", "--processes", "2", "--broker", broker, cwd=tmp_path)
    assert (refused.returncode, "group.instance.id=mail: names one process of 2; write {process} into it" in refused.stderr) == (2, True)


def test_a_member_whose_name_another_has_taken_says_so_and_leaves_the_work_to_it(site, sqlite_database_url):
    made = site(sqlite_database_url, "classic", partitions=1)
    url = made.url(**{"group.instance.id": "mail"})
    with closing(connect(url)) as first, closing(connect(url)) as second:
        one = first.consume({made.name: 1}, group=made.name, prefetch=1, name="one")
        two = second.consume({made.name: 1}, group=made.name, prefetch=1, name="two")
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"fenced by other consumer with same group\.instance\.id"):
                eventually(lambda: one.receive(1, 0.2))
            second.publish([Message(id=uuid.uuid4().hex, queue=made.name, body=b"{}", headers={})])
            two.ack(eventually(lambda: two.receive(1, 0.2)))
        with pytest.raises(ConfigurationError, match=f"names one member, and this adapter has a consumer in group '{made.name}' already"):
            second.consume({made.name: 1}, group=made.name, prefetch=1, name="three")


def test_a_handler_that_takes_longer_than_the_lock_of_a_share_group_runs_once_while_others_wait_for_its_end(site, sqlite_database_url):
    made = site(sqlite_database_url, "share", partitions=1, lease=15)
    with made.works() as process:
        assert eventually(lambda: made.at.says("has no timeout, and a job that takes longer than 13 s goes to others"))
        made.enqueue("long", range(1))
        eventually(lambda: made.at.says("jobs that were not settled after 13 s and go to others: 1"))
        made.enqueue("brief", range(1, 20))
        eventually(lambda: made.effects() == 19)
        made.let_end("order-0")
        made.assert_all_done(20)
        assert made.started("order-0") == children_of(process.pid)


@both
def test_a_member_that_was_stopped_past_its_session_is_fenced_and_then_works_again(site, postgresql_database_url, mode):
    made = site(postgresql_database_url, mode, partitions=1, lease=15)
    with made.works(concurrency=1, lease=2.0) as first:
        zombie = child_of(first)
        made.enqueue("long", range(1))
        assert eventually(lambda: made.started("order-0")) == [zombie]
        os.kill(zombie, signal.SIGSTOP)
        try:
            with made.works(concurrency=1, lease=2.0) as second:
                eventually(lambda: len(made.started("order-0")) == 2)
                made.enqueue("brief", range(1, 20))
                made.let_end("order-0")
                made.assert_all_done(20, charged=1)
                assert made.at.rows("SELECT pid FROM effects WHERE key = 'order-0'") == [(child_of(second),)]
                os.kill(zombie, signal.SIGCONT)
                eventually(lambda: made.at.says("long order-0: attempt 1 is no longer ours"))
        finally:
            os.kill(zombie, signal.SIGCONT)
        made.enqueue("brief", range(20, 40))
        made.assert_all_done(40, charged=1)
        assert made.at.rows("SELECT DISTINCT pid FROM effects WHERE key = 'order-39'") == [(zombie,)]


@both
def test_partitions_that_are_added_under_load_are_read_without_a_restart(site, sqlite_database_url, mode):
    made, number = site(sqlite_database_url, mode, partitions=1), 0
    with made.works(broker=made.url(**{"topic.metadata.refresh.interval.ms": 500})) as process:
        made.enqueue("brief", range(number, number := 50))
        eventually(lambda: made.effects() > 0)
        children = children_of(process.pid)
        made.declare(partitions=4)
        while not all(made.server.ends(made.name, 4)):
            made.enqueue("brief", range(number, number := number + 20))
            eventually(lambda: made.sent() == number)
        made.assert_all_done(number)
        assert children_of(process.pid) == children
        if mode == "classic":
            assert made.server.offsets(made.name, made.name) == dict(enumerate(made.server.ends(made.name, 4)))


@both
def test_s057_a_topic_that_is_deleted_under_a_worker_is_told_and_not_made_by_chance_and_work_goes_on_when_it_is_declared_again(
    site, sqlite_database_url, mode, caplog
):
    made = site(sqlite_database_url, mode, partitions=1)
    with inside(made) as worker:
        made.enqueue("brief", range(10))
        made.assert_all_done(10)
        assert worker.ready()
        made.server.delete(made.name)
        eventually(lambda: not worker.ready())
        assert [line for line in caplog.messages if made.name in line and "Unknown topic or partition" in line]
        made.enqueue("brief", range(10, 20))
        eventually(lambda: made.at.rows("SELECT 1 FROM postroom_outbox WHERE status = 'pending' AND last_error LIKE '%is not declared%'"))
        assert made.name not in made.server.admin.list_topics(timeout=10).topics
        made.declare(partitions=1)
        made.assert_all_done(20)
        eventually(worker.ready)


@both
def test_s057_a_topic_that_is_made_anew_under_a_worker_is_read_from_its_beginning(site, sqlite_database_url, mode):
    made = site(sqlite_database_url, mode, partitions=1)
    with inside(made) as worker:
        made.enqueue("brief", range(5))
        made.assert_all_done(5)
        made.server.delete(made.name)
        made.declare(partitions=1)
        made.enqueue("brief", range(5, 25))  # more than were read of the old one
        made.assert_all_done(25)
        eventually(worker.ready)


@both
def test_s057_a_worker_is_not_ready_while_one_of_its_topics_is_missing_however_busy_it_is_with_another(site, sqlite_database_url, mode, caplog):
    made = site(sqlite_database_url, mode, partitions=1)
    with inside(made, beside=f"{made.name}-busy", **{"topic.metadata.refresh.interval.ms": 500}) as worker:
        eventually(worker.ready)
        made.server.delete(made.name)
        eventually(lambda: not worker.ready())
        done = made.effects()
        eventually(lambda: made.effects() > done + 5)
        assert not worker.ready()
        told = f"topic '{made.name}': "
        assert len([line for line in caplog.messages if line.startswith(told)]) == 1
        made.declare(partitions=1)
        eventually(worker.ready)
        made.enqueue("brief", range(1))
        eventually(lambda: made.at.rows("SELECT 1 FROM effects WHERE key = 'order-0'"))


def test_s051_a_worker_whose_offset_is_gone_is_not_ready_says_so_with_the_numbers_and_skips_nothing(site, sqlite_database_url, caplog):
    made = site(sqlite_database_url, "classic", partitions=1)
    with inside(made):
        made.enqueue("brief", range(10))
        made.assert_all_done(10)
    made.enqueue("brief", range(10, 20))
    with closing(connect(made.url())) as adapter:
        Relay(made.at.engine, adapter).run_once()
    made.server.forget_before(made.name, 0, 15)
    with inside(made) as worker:
        eventually(lambda: any(re.search(rf"{made.name}\[0\] at 10.*out of range", line) for line in caplog.messages))
        eventually(lambda: not worker.ready())
        assert made.effects() == 10
    made.server.set_group(made.name, {(made.name, 0): 15})
    with inside(made) as worker:
        eventually(lambda: made.effects() == 15)
        eventually(worker.ready)


@contextmanager
def inside(made: Site, *, beside: str = "", **options: object) -> Iterator[Worker]:
    """A worker in the test's own process, whose readiness can be asked. In a queue `beside`, each job makes the next one, for ever."""
    jobs = Jobs(group=made.name)

    @jobs.handler("brief", queue=made.name)
    def brief(payload: dict[str, Any], context: Context) -> None:
        context.session.execute(insert(effects_table()), {"key": context.job.key, "attempt": context.job.attempt, "pid": os.getpid()})

    def again(payload: dict[str, Any], context: Context) -> None:
        brief(payload, context)
        context.enqueue("again", {}, key=f"{context.job.key}+")

    with closing(connect(made.url(**options))) as adapter:
        if beside:
            jobs.handler("again", queue=beside)(again)
            adapter.ensure([Queue(name=beside)])
            with made.at.engine.begin() as connection:
                Outbox(queue=beside).enqueue(connection, "again", {}, key="busy")
        worker = Worker(jobs, made.at.engine, adapter, WorkerSettings(concurrency=2, relay=RelayOptions(poll_min=0.01, poll_max=0.05)))
        with working(worker):
            yield worker


def effects_table() -> Table:
    from effects import effects  # noqa: PLC0415 - the applications' own module

    return effects


def test_a_timeout_beyond_the_lock_of_a_share_group_is_refused_with_both_numbers_and_the_remedy(kafka_server, tmp_path):
    name = f"work-{uuid.uuid4().hex[:8]}"
    (tmp_path / "slow.py").write_text(SLOW.format(name=name))
    assert postroom("schema", "create", cwd=tmp_path).returncode == 0
    share, classic = (f"kafka://{kafka_server.address}?mode={mode}" for mode in ("share", "classic"))
    refused = postroom("work", "slow:jobs", "--drain", "--broker", share, cwd=tmp_path)
    assert refused.returncode == 2
    told = f"queue '{name}': the handler of 'export' has a timeout of 45 s, and a job that takes longer than 28 s goes to others"
    assert told in refused.stderr
    assert f"group '{name}.share' has share.record.lock.duration.ms=30000; give the handler a timeout of at most 28 s" in refused.stderr
    assert "the queue a longer lease (up to 60 s on this cluster), or use mode=classic" in refused.stderr
    (tmp_path / "slow.py").write_text(SLOW.format(name=name).replace("lease=30", "lease=50"))
    assert postroom("work", "slow:jobs", "--drain", "--broker", share, cwd=tmp_path).returncode == 0
    assert postroom("work", "slow:jobs", "--drain", "--broker", classic, cwd=tmp_path).returncode == 0


SLOW = """
from postroom.adapters.seam import Queue
from postroom.consumers import Jobs

jobs = Jobs(group="{name}")

@jobs.handler("export", queue=Queue(name="{name}", lease=30), timeout=45)
def export(payload: dict) -> None: ...
"""
