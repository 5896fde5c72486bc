"""Where is order 4711's email? What `postroom status` and `postroom stats` tell at each point of a job's life."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from postroom.adapters.seam import Message, Queue
from postroom.consumers.cli.status import show, what_next
from postroom.consumers.dead import as_seen, discarded
from postroom.consumers.ledger.tables import ledger
from postroom.consumers.letters import Revival
from postroom.consumers.stats import stats_of
from postroom.consumers.status import JobStatus, status_of
from postroom.outbox.relay import Relay
from postroom.outbox.tables import outbox
from support.command import postroom
from support.postrooms import Postroom, postroom_at


@pytest.fixture
def room(database_url: str) -> Iterator[Postroom]:
    with postroom_at(database_url, database_url) as made:
        yield made


@pytest.fixture
def small_room(sqlite_database_url: str) -> Iterator[Postroom]:
    with postroom_at(sqlite_database_url, sqlite_database_url) as made:
        yield made


def only(room: Postroom, name: str = "order-4711") -> JobStatus:
    [status] = status_of(room.engine, name)
    return status


def relay(room: Postroom) -> None:
    Relay(room.engine, room.adapter).drain()


def change_entry(room: Postroom, **values: object) -> None:
    with room.engine.begin() as connection:
        connection.execute(update(ledger).values(**values))


def test_a_job_is_told_at_each_point_of_its_life(room: Postroom):
    room.enqueue("order-4711")
    waiting = only(room)
    assert (waiting.status, waiting.place, waiting.attempts) == ("pending", "outbox", 0)
    assert waiting.next_at is not None
    assert waiting.next_at <= waiting.now

    relay(room)
    assert (only(room).status, only(room).place) == ("pending", "broker")

    room.broken["order-4711"] = "no mail server"
    room.drain()
    failed = only(room)
    assert (failed.status, failed.place, failed.attempts, failed.max_attempts) == ("failed", "ledger", 1, 1)
    assert failed.last_error == "no mail server"
    assert failed.finished_at is not None

    room.broken.clear()
    room.ledger.retry(room.entry("order-4711").id, replays=0)
    assert (only(room).status, only(room).replays) == ("pending", 1)
    [(place, letter)] = room.dead()
    place.put_back({letter.id: Revival(headers={"postroom-replays": 1})})
    room.drain()
    assert (only(room).status, only(room).replays, only(room).id) == ("done", 1, waiting.id)


def test_a_job_is_found_by_its_id(room: Postroom):
    room.enqueue("order-4711", "order-4712")
    job = only(room).id
    assert only(room, job).key == "order-4711"
    room.drain()
    assert (only(room, job).key, only(room, job).status) == ("order-4711", "done")


def test_of_an_unknown_name_nothing_is_told(room: Postroom):
    assert status_of(room.engine, "order-4711") == []


def test_keys_are_told_apart_byte_by_byte(room: Postroom):
    room.enqueue("order-4711")
    assert status_of(room.engine, "Order-4711") == []
    assert status_of(room.engine, "order-4711 ") == []


def test_a_job_that_the_broker_refused_is_parked(small_room: Postroom):
    small_room.enqueue("order-4711")
    small_room.park("order-4711", "message too large")
    assert (only(small_room).status, only(small_room).last_error) == ("parked", "message too large")


def test_what_kept_a_row_in_the_outbox_is_no_error_of_it_any_more_once_it_is_sent(room: Postroom):
    room.enqueue("order-4711")
    with room.engine.begin() as connection:
        connection.execute(update(outbox).values(last_error="queue 'emails' is not declared"))
    assert only(room).last_error == "queue 'emails' is not declared"
    relay(room)
    assert (only(room).place, only(room).last_error) == ("broker", None)


def test_a_delayed_job_tells_when_it_goes_on(small_room: Postroom):
    with small_room.engine.begin() as connection:
        small_room.outbox.enqueue(connection, "send", None, key="order-4711", delay=7200)
    status = only(small_room)
    assert 7140 < status.next_at - status.now < 7201
    assert re.match("in the outbox; to the broker in (2h|1h 59m)", what_next(status))


def test_a_running_job_whose_lease_has_ended_is_abandoned(small_room: Postroom):
    small_room.enqueue("order-4711")
    small_room.drain()
    change_entry(small_room, status="running", worker="vm-1", lease_until=only(small_room).now + 30, finished_at=None)
    assert only(small_room).status == "running"
    assert re.fullmatch(r"vm-1 runs it, under a lease for \d+s more", what_next(only(small_room)))
    change_entry(small_room, lease_until=only(small_room).now - 5)
    assert only(small_room).status == "abandoned"
    assert re.match(r"vm-1 has vanished, its lease ended \d+s ago", what_next(only(small_room)))


def test_a_retry_that_waits_tells_when_it_is_due(small_room: Postroom):
    small_room.enqueue("order-4711")
    small_room.drain()
    change_entry(small_room, status="pending", retry_at=only(small_room).now + 60, finished_at=None)
    assert (only(small_room).status, only(small_room).place) == ("pending", "broker")
    assert re.fullmatch(r"next attempt in (1m|\d\ds)", what_next(only(small_room)))


def test_two_jobs_about_one_order_are_told_one_by_one(small_room: Postroom):
    small_room.enqueue("order-4711")
    small_room.drain()
    small_room.enqueue("order-4711")
    first, second = status_of(small_room.engine, "order-4711")
    assert (first.status, second.status) == ("done", "pending")
    small_room.drain()
    assert [status.status for status in status_of(small_room.engine, "order-4711")] == ["done", "done"]


def told_of(room: Postroom, job: str) -> JobStatus:
    """As the command does, with a look into the dead letters."""
    [status] = status_of(room.engine, job, find_dead=lambda _queue, of: next((letter for _, letter in room.dead() if letter.message.id == of), None))
    return status


def enqueue_one(room: Postroom, payload: object = None) -> str:
    with room.engine.begin() as connection:
        return room.outbox.enqueue(connection, "send", payload, key="order-4711")


def test_a_job_in_conflict_is_failed_with_its_reason_whether_or_not_its_letter_can_be_asked_for(room: Postroom):
    first = enqueue_one(room, {"amount": 1})
    room.drain()
    second = enqueue_one(room, {"amount": 2})
    room.drain()
    for status in (told_of(room, second), only(room, second)):
        assert (status.id, status.status, status.attempts) == (second, "failed", 0)
        assert re.match(f"conflict: key 'order-4711' belongs to job {first} with payload .*; this one has ", status.last_error)
    assert (only(room, first).status, only(room, first).last_error) == ("done", None)
    assert [(status.id, status.status) for status in status_of(room.engine, "order-4711")] == [(first, "done"), (second, "failed")]


def test_a_job_with_the_payload_of_another_that_is_done_is_done_by_that(small_room: Postroom):
    first, second = enqueue_one(small_room), enqueue_one(small_room)
    small_room.drain()
    owner, other = (first, second) if small_room.entry("order-4711").job_id == first else (second, first)
    assert only(small_room, owner).last_error is None
    assert (only(small_room, other).status, only(small_room, other).last_error) == ("done", f"another job of this key, {owner}, is done")


def test_a_job_whose_key_was_given_up_with_another_is_failed_too(small_room: Postroom):
    small_room.kill_jobs("order-4711")
    first = small_room.entry("order-4711").job_id
    second = enqueue_one(small_room)
    small_room.drain()
    assert (only(small_room, second).status, only(small_room, second).attempts) == ("failed", 0)
    assert only(small_room, second).last_error == f"another job of this key, {first}, was given up: no mail server"
    assert told_of(small_room, second).last_error == "given up after 1 attempt: no mail server"


def test_a_job_that_waits_behind_another_of_its_key_says_so(small_room: Postroom):
    first = enqueue_one(small_room)
    small_room.drain()
    change_entry(small_room, status="pending", finished_at=None)
    second = enqueue_one(small_room)
    relay(small_room)
    assert (only(small_room, second).status, only(small_room, second).last_error) == ("pending", f"another job of this key, {first}, is pending")


def test_a_discarded_job_frees_its_key_for_a_corrected_one_and_each_is_told_as_what_became_of_it(room: Postroom):
    room.broken["order-4711"] = "no such amount"
    wrong = enqueue_one(room, {"amount": "oops"})
    room.drain()
    room.broken.clear()
    assert len(list(discarded(room.engine, as_seen(room.engine, room.dead()), "a typo"))) == 1
    corrected = enqueue_one(room, {"amount": 7})
    relay(room)
    assert only(room, corrected).status == "pending"
    room.drain()
    assert room.sent == {"order-4711": 1}
    assert (only(room, corrected).status, only(room, corrected).last_error) == ("done", None)
    assert (only(room, wrong).status, only(room, wrong).last_error) == ("failed", "discarded: a typo; it was: no such amount")


def test_discarding_a_job_in_conflict_leaves_the_key_to_its_owner(small_room: Postroom):
    small_room.broken["order-4711"] = "no mail server"
    first = enqueue_one(small_room, 1)
    small_room.drain()
    second = enqueue_one(small_room, 2)
    small_room.drain()
    conflicts = [found for found in small_room.dead() if found[1].message.id == second]
    list(discarded(small_room.engine, as_seen(small_room.engine, conflicts), "a typo"))
    entry = small_room.entry("order-4711")
    assert (entry.job_id, entry.is_free, entry.last_error) == (first, False, "no mail server")


def test_the_ledger_remembers_when_the_outbox_has_forgotten(small_room: Postroom):
    small_room.enqueue("order-4711")
    small_room.drain()
    job = only(small_room).id
    with small_room.engine.begin() as connection:
        connection.execute(outbox.delete())
    assert (only(small_room).status, only(small_room).id) == ("done", job)


def test_a_job_that_no_handler_takes_is_found_among_the_dead_letters(small_room: Postroom, tmp_path: Path):
    small_room.enqueue("order-4711", type_="unknown")
    small_room.drain()
    [told] = status_json(small_room, "order-4711", cwd=tmp_path)
    assert told["status"] == "failed"
    assert "unknown" in told["last_error"]


def test_the_command_answers_in_a_table_and_in_json(small_room: Postroom, tmp_path: Path):
    small_room.kill_jobs("order-4711")
    url = small_room.engine.url.render_as_string()
    table = postroom("--database", url, "status", "order-4711", cwd=tmp_path).stdout.splitlines()
    assert table[0].split() == ["TYPE", "STATUS", "FAILED", "ATTEMPTS", "REPLAYS", "WHAT", "NEXT", "LAST", "ERROR", "JOB"]
    assert "send  failed  1 of 1" in table[1]
    assert "no mail server" in table[1]
    [told] = status_json(small_room, "order-4711", cwd=tmp_path)
    assert (told["key"], told["status"], told["attempts"], told["max_attempts"]) == ("order-4711", "failed", 1, 1)
    assert told["finished_at"].endswith("Z")


def test_where_a_job_is_in_several_queues_each_is_named(capsys: pytest.CaptureFixture[str], small_room: Postroom):
    small_room.enqueue("order-4711")
    mails = only(small_room)
    show([mails, replace(mails, queue="orders.stock")])
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [["TYPE", "QUEUE"], ["send", "emails"], ["send", "orders.stock"]]
    show([mails, mails])
    assert "QUEUE" not in capsys.readouterr().out


def test_the_command_says_no_to_an_unknown_key(small_room: Postroom, tmp_path: Path):
    answer = postroom("--database", small_room.engine.url.render_as_string(), "status", "order-1", cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr == "postroom: nothing is known of 'order-1': no job in outbox or ledger has this key or id\n"


def test_without_tables_it_names_the_command_that_makes_them(tmp_path: Path):
    (tmp_path / "postroom.db").touch()
    answer = postroom("status", "order-4711", cwd=tmp_path)
    assert answer.returncode == 3
    assert answer.stderr.startswith("postroom: sqlite:///postroom.db: no such table: postroom_outbox; run `postroom schema create`")


def test_stats_count_what_is_where(room: Postroom):
    room.kill_jobs("order-1")
    room.enqueue("order-2")
    room.drain()
    room.enqueue("order-3", "order-4", "order-5")
    relay(room)
    room.enqueue("order-6", "order-7")
    room.park("order-7", "message too large")
    stats = stats_of(room.engine, room.adapter)
    [emails] = stats.queues
    assert (emails.queue, emails.outbox.due, emails.outbox.parked) == ("emails", 1, 1)
    assert {name: emails.broker[name] for name in ("pending", "running", "failed")} == {"pending": 3, "running": 0, "failed": 1}
    assert emails.ledger == {"done": 1, "failed": 1}
    assert 0 <= stats.lag < 60


def test_stats_tell_of_a_queue_that_the_broker_does_not_have_any_more_how_many_jobs_may_be_lost_with_it(room: Postroom):
    room.kill_jobs("order-1")
    room.enqueue("order-2")
    room.drain()
    room.enqueue("order-3", "order-4", "order-5")
    relay(room)
    assert stats_of(room.engine, room.adapter).gone == {}
    with room.engine.begin() as connection:
        connection.execute(update(outbox).where(outbox.c.key == "order-5").values(last_error="discarded: a typo; it was: none"))
        connection.execute(update(ledger).values(queue="mails"))
        connection.execute(update(outbox).values(queue="mails"))
    stats = stats_of(room.engine, room.adapter)
    assert stats.gone == {"mails": 2}
    assert [(queue.queue, dict(queue.broker), queue.ledger.get("done", 0)) for queue in stats.queues if queue.queue == "mails"] == [("mails", {}, 1)]


def test_a_topic_is_not_gone_where_its_groups_are(room: Postroom):
    room.enqueue("order-1")
    relay(room)
    room.adapter.ensure([Queue(name="topic", groups=("one",))])
    with room.engine.begin() as connection:
        connection.execute(update(outbox).values(queue="topic"))
    assert stats_of(room.engine, room.adapter).gone == {}


def test_the_lag_is_the_oldest_due_row_s_and_none_when_nothing_is_due(small_room: Postroom):
    with small_room.engine.begin() as connection:
        small_room.outbox.enqueue(connection, "send", None, key="order-1", delay=7200)
    assert stats_of(small_room.engine, small_room.adapter).lag == 0
    small_room.enqueue("order-2")
    with small_room.engine.begin() as connection:
        connection.execute(update(outbox).where(outbox.c.key == "order-2").values(available_at=outbox.c.available_at - 90))
    assert 90 <= stats_of(small_room.engine, small_room.adapter).lag < 150


def test_the_stats_command_answers_in_a_table_and_in_json(small_room: Postroom, tmp_path: Path):
    small_room.adapter.publish([Message(id="x", queue="emails", body=b"?")])
    url = small_room.engine.url.render_as_string()
    lines = postroom("--database", url, "stats", cwd=tmp_path).stdout.splitlines()
    assert lines[1].split() == ["emails", "0", "0", "0", "1", "0", "0", "0", "0"]
    assert lines[-1] == "lag: 0s"  # nothing is due in the outbox
    told = json.loads(postroom("--database", url, "stats", "--json", cwd=tmp_path).stdout)
    [emails] = told["queues"]
    assert emails["broker"] == {"pending": 1, "running": 0, "failed": 0}
    assert emails["ledger"] == {"pending": 0, "running": 0, "done": 0, "failed": 0}
    assert set(emails["outbox"]) == {"due", "delayed", "retrying", "parked", "lag"}
    assert told["lag"] == 0


def status_json(room: Postroom, name: str, *, cwd: Path) -> list[dict]:
    answer = postroom("--database", room.engine.url.render_as_string(), "status", name, "--json", cwd=cwd)
    assert answer.returncode == 0, answer.stderr
    return [json.loads(line) for line in answer.stdout.splitlines()]


def test_the_brokers_own_count_is_shown_beside_the_ledgers_where_it_says_more(capsys: pytest.CaptureFixture[str], small_room: Postroom):
    small_room.enqueue("order-4711")
    agreed = replace(only(small_room), attempts=1, redeliveries=1)
    show([agreed])
    assert "REDELIVERIES" not in capsys.readouterr().out
    show([agreed, replace(agreed, redeliveries=7)])
    assert re.search(r"FAILED ATTEMPTS\s+REDELIVERIES\s", capsys.readouterr().out)


def test_what_the_broker_has_counted_is_told_of_the_latest_begin(room: Postroom):
    room.enqueue("order-4711")
    assert only(room).redeliveries is None
    room.drain()
    assert (only(room).attempts, only(room).redeliveries) == (0, 0)
