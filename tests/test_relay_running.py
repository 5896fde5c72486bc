"""The relay as a thread of its own: start and stop, health, wake-up, fork, chores."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest
from fakes import UNKNOWN, Gate, Scripted
from sqlalchemy import Engine, func, insert, select, update

from postroom.adapters.errors import SchemaDrift, Unavailable
from postroom.adapters.sql.metadata import metadata
from postroom.outbox.backoff import Backoff
from postroom.outbox.health import State
from postroom.outbox.options import RelayOptions
from postroom.outbox.relay import Relay
from postroom.outbox.tables import LANES, lanes, outbox, relays
from support.outboxes import enqueue_ids, let_pass, outbox_at, statuses

QUICK = RelayOptions(poll_min=0.001, poll_max=0.01, outage=Backoff(first=0.001, cap=0.01))
PATIENT = RelayOptions(poll_min=60.0, poll_max=60.0)


@pytest.fixture
def engine(sqlite_database_url: str) -> Iterator[Engine]:
    with outbox_at(sqlite_database_url) as engine:
        yield engine


class Watched(Scripted):
    """Lets a test wait until a call of `publish` has answered and fulfils a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.answered = threading.Condition()

    def publish(self, messages):
        try:
            return super().publish(messages)
        finally:
            with self.answered:
                self.answered.notify_all()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self.answered:
            assert self.answered.wait_for(condition, 60)


def holders(engine: Engine) -> set[str | None]:
    with engine.connect() as connection:
        return set(connection.execute(select(lanes.c.relay)).scalars())


def wait_until(condition: Callable[[], bool]) -> None:
    """For what no event tells: the state of the relay's thread between two rounds."""
    moment = threading.Event()
    for _ in range(6000):
        if condition():
            return
        moment.wait(0.01)
    pytest.fail("it never came true")


def test_it_sends_from_a_thread_of_the_callers_process_until_it_is_stopped(engine):
    broker = Watched()
    enqueue_ids(engine, "a")
    with Relay(engine, broker, options=QUICK) as relay:
        broker.wait_until(lambda: "a" in broker.ids)
        enqueue_ids(engine, "b")
        broker.wait_until(lambda: "b" in broker.ids)
    assert statuses(engine) == {"a": "sent", "b": "sent"}
    assert relay.health().state is State.STOPPED
    assert holders(engine) == {None}, "the lanes are free for others at once"


def test_start_and_stop_may_be_repeated(engine):
    broker = Watched()
    relay = Relay(engine, broker, options=QUICK)
    assert relay.stop()
    for job_id in ("a", "b"):
        enqueue_ids(engine, job_id)
        relay.start()
        relay.start()
        broker.wait_until(lambda job_id=job_id: job_id in broker.ids)
        assert relay.stop()
        assert relay.stop()
    assert len(broker.batches) == 2


def test_wake_ends_the_pause_at_once(engine):
    broker = Watched()
    enqueue_ids(engine, "a")
    with Relay(engine, broker, options=PATIENT) as relay:
        broker.wait_until(lambda: "a" in broker.ids)
        enqueue_ids(engine, "b")
        wait_until(lambda: relay.wake() or "b" in broker.ids)


def test_a_commit_on_postgresql_wakes_the_relay(postgresql_database_url):
    with outbox_at(postgresql_database_url) as engine:
        broker = Watched()
        enqueue_ids(engine, "a")
        with Relay(engine, broker, options=PATIENT):
            broker.wait_until(lambda: "a" in broker.ids)
            enqueue_ids(engine, "b")
            broker.wait_until(lambda: "b" in broker.ids)


def test_s013_stop_keeps_its_bound_while_the_broker_does_not_answer(engine):
    broker, gate = Scripted(), Gate()
    broker.before = gate.wait
    enqueue_ids(engine, "a")
    relay = Relay(engine, broker, options=QUICK)
    relay.start()
    assert gate.entered.wait(60)
    assert not relay.stop(timeout=0.01)
    with pytest.raises(Unavailable, match="still stopping"):
        relay.start()
    gate.opened.set()
    assert relay.stop(timeout=60)
    assert statuses(engine) == {"a": "sent"}, "the answer that came late counts"


def test_s066_it_is_degraded_while_the_broker_is_away_and_says_so_once(engine, caplog):
    broker = Watched()
    broker.away = ConnectionRefusedError("broker down")
    enqueue_ids(engine, "a")
    with caplog.at_level("INFO", logger="postroom.outbox"), Relay(engine, broker, options=QUICK) as relay:
        wait_until(lambda: relay.health().failures >= 20)
        health = relay.health()
        assert (health.state, health.last_error) == (State.DEGRADED, "ConnectionRefusedError: broker down")
        broker.away = None
        wait_until(lambda: relay.health().state is State.WORKING)
    assert statuses(engine) == {"a": "sent"}
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "broker down" in caplog.text
    assert "working again" in caplog.text


def test_it_outlives_a_database_that_goes_away(engine, monkeypatch):
    broker = Watched()
    relay = Relay(engine, broker, options=QUICK)
    with monkeypatch.context() as patched, relay:
        wait_until(lambda: relay.health().state is State.WORKING)
        patched.setattr("postroom.outbox.claim.transact", _database_away)
        wait_until(lambda: relay.health().state is State.DEGRADED)
        assert relay.health().last_error == "the database is away"
        patched.undo()
        enqueue_ids(engine, "a")
        broker.wait_until(lambda: "a" in broker.ids)


def _database_away(*_: object) -> None:
    raise Unavailable("the database is away")


def test_it_outlives_a_fault_of_its_own_and_shows_the_traceback(engine, monkeypatch, caplog):
    broker = Watched()
    relay = Relay(engine, broker, options=QUICK)
    with monkeypatch.context() as patched, relay:
        wait_until(lambda: relay.health().state is State.WORKING)
        patched.setattr("postroom.outbox.rounds.send", _fault)
        enqueue_ids(engine, "a")
        wait_until(lambda: relay.health().state is State.DEGRADED)
        patched.undo()
        broker.wait_until(lambda: "a" in broker.ids)
    assert "Traceback" in caplog.text


def _fault(*_: object) -> None:
    raise ZeroDivisionError


def test_run_refuses_at_once_what_waiting_cannot_mend(engine):
    metadata.drop_all(engine, [lanes])
    with pytest.raises(SchemaDrift, match="postroom_lanes"):
        Relay(engine, Scripted(), options=QUICK).run(threading.Event())


def test_a_thread_waits_even_for_that(engine):
    metadata.drop_all(engine, [lanes])
    broker = Watched()
    enqueue_ids(engine, "a")
    with Relay(engine, broker, options=QUICK) as relay:
        wait_until(lambda: relay.health().failures >= 3)
        assert "postroom_lanes" in relay.health().last_error
        metadata.create_all(engine, [lanes])
        broker.wait_until(lambda: "a" in broker.ids)


def test_new_rows_do_not_end_the_pause_of_an_outage(engine):
    broker = Watched()
    broker.always["a"] = UNKNOWN
    enqueue_ids(engine, "a")
    options = RelayOptions(poll_min=0.001, outage=Backoff(first=60.0, cap=60.0, jitter=0.0))
    with Relay(engine, broker, options=options) as relay:
        wait_until(lambda: relay.health().state is State.DEGRADED)
        for _ in range(10):
            relay.wake()
    assert len(broker.batches) == 1


def test_the_lanes_are_renewed_while_a_broker_takes_longer_than_the_lease(engine):
    broker, gate = Scripted(), Gate()
    broker.before = gate.wait
    enqueue_ids(engine, "a")
    with Relay(engine, broker, options=RelayOptions(lease=0.15)):
        assert gate.entered.wait(60)
        first = _lease_end(engine)
        wait_until(lambda: _lease_end(engine) > first + 0.15)
        gate.opened.set()
        wait_until(lambda: statuses(engine) == {"a": "sent"})


def _lease_end(engine: Engine) -> float:
    with engine.connect() as connection:
        return connection.execute(select(func.min(lanes.c.until))).scalar()


def test_a_round_that_hangs_keeps_its_lanes_no_longer_than_twenty_leases(engine):
    broker, gate = Scripted(), Gate()
    broker.before = gate.wait
    enqueue_ids(engine, "a")
    hanging = Relay(engine, broker, options=RelayOptions(lease=0.06, poll_min=0.001, poll_max=0.01))
    rescuer = Watched()
    with hanging:
        assert gate.entered.wait(60)
        with Relay(engine, rescuer, options=QUICK):
            rescuer.wait_until(lambda: rescuer.ids == ["a"])
            wait_until(lambda: statuses(engine) == {"a": "sent"})
        gate.opened.set()
    assert broker.ids == ["a"], "the same id: whoever consumes it sees a copy"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # that is what this is about
def test_s038_after_a_fork_the_child_has_a_relay_that_was_never_started(engine):
    broker = Watched()
    enqueue_ids(engine, "a")
    with Relay(engine, broker, options=PATIENT) as relay:
        wait_until(lambda: statuses(engine) == {"a": "sent"})
        child = os.fork()
        if child == 0:
            os._exit(_run_in_child(engine, relay))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        enqueue_ids(engine, "b")
        wait_until(lambda: relay.wake() or "b" in broker.ids)


def _run_in_child(engine: Engine, relay: Relay) -> int:
    """0 when all is as it should be; no assert, whose report would come from the wrong process."""
    parent = relay.name
    if relay.health().state is not State.STOPPED or relay.name == parent or not relay.stop():
        return 1
    parent_holds = holders(engine) == {parent}
    relay.run_once()
    return 0 if parent_holds and holders(engine) == {parent} else 2


def test_s085_chores_are_done_between_the_rounds_of_a_busy_relay(engine):
    broker = Watched()
    enqueue_ids(engine, *(f"old-{number}" for number in range(7)))
    Relay(engine, broker).drain()
    let_pass(engine, 1000.0)
    enqueue_ids(engine, "parked", *(f"new-{number}" for number in range(20)))
    with engine.begin() as connection:
        connection.execute(insert(relays).values(id="gone", until=0.0))
        connection.execute(update(outbox).where(outbox.c.id == "parked").values(status="parked"))
    options = RelayOptions(batch=2, poll_min=0.001, poll_max=0.01, retention=500.0, tidy_batch=2)
    with Relay(engine, broker, options=options) as relay:
        broker.wait_until(lambda: "new-19" in broker.ids)
        wait_until(lambda: not any(job_id.startswith("old") for job_id in statuses(engine)))
        with engine.connect() as connection:
            assert list(connection.execute(select(relays.c.id)).scalars()) == [relay.name]
    assert statuses(engine)["parked"] == "parked"
    assert len(statuses(engine)) == 21
    assert broker.tidied[0] == (500.0, 2)


def test_chores_that_fail_do_not_keep_the_relay_from_sending(engine, caplog):
    broker = Watched()
    broker.tidy = _database_away_with_keywords
    enqueue_ids(engine, "a")
    with Relay(engine, broker, options=QUICK) as relay:
        broker.wait_until(lambda: "a" in broker.ids)
        wait_until(lambda: "housekeeping put off" in caplog.text)
        assert relay.health().state is State.WORKING


def _database_away_with_keywords(**_: object) -> None:
    raise Unavailable("the broker is away")


def test_a_relay_holds_all_lanes_while_it_runs_alone(engine):
    with Relay(engine, Scripted(), options=QUICK) as relay:
        wait_until(lambda: holders(engine) == {relay.name})
        with engine.connect() as connection:
            assert connection.execute(select(func.count()).select_from(lanes)).scalar() == LANES
