"""Jobs that the broker has lost: found among the sent rows, and sent again; those that wait there, or have ended, are left alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from sqlalchemy import Engine, select, text, update

from postroom.adapters import Adapter, Queue, connect
from postroom.adapters.errors import ConfigurationError
from postroom.adapters.memory import Memory
from postroom.adapters.seam import Message
from postroom.adapters.sql.types import now
from postroom.consumers import Jobs, Overdue, Resent, resend
from postroom.consumers.ledger import AlreadyDone, Done, Failed, Ledger, Started
from postroom.consumers.ledger.tables import ledger
from postroom.outbox.again import Again, send_again
from postroom.outbox.envelope import Envelope, read_envelope
from postroom.outbox.relay import Relay
from postroom.outbox.rows import build_row
from postroom.outbox.tables import holdups, outbox
from support.command import postroom
from support.ledgers import begin, claim, database, finish, open_ledger
from support.outboxes import enqueue, fill, let_pass, new_row, statuses
from support.plans import analyze, plans_of

HOUR = 3600.0
HOURLY = Overdue(older_than=HOUR)
QUEUES = [Queue(name="emails"), Queue(name="steps", ordered=True), Queue(name="orders", groups=("mail", "stock"))]


def _send(payload: dict[str, int]) -> None: ...


def broker() -> Memory:
    """One that has the queues, and nothing in them."""
    adapter = Memory(native_delay=False)
    adapter.ensure(QUEUES)
    return adapter


def relay(engine: Engine, adapter: Adapter | None = None, *, hours: float = 0.0) -> Adapter:
    """Send all that is due to this broker, or to one that is forgotten: so many hours ago."""
    adapter = adapter or broker()
    working = Relay(engine, adapter)
    while working.run_once().worked:
        pass
    let_pass(engine, hours * HOUR)
    return adapter


def lost(engine: Engine, *ids: str, **how: Any) -> None:
    """Jobs that were sent two hours ago to a broker that is no more."""
    enqueue(engine, *(new_row(job_id, **how) for job_id in ids))
    relay(engine, hours=2)


def messages(adapter: Adapter, queue: str = "emails") -> Sequence[Message]:
    consumer = adapter.consume({queue: 1}, group="default", prefetch=1000, name="w")
    return [delivery.message for delivery in consumer.receive(1000, 0.05)]


def sent_again(engine: Engine, queue: str = "emails") -> list[str]:
    """The ids of the messages that the next relay publishes."""
    return [message.id for message in messages(relay(engine), queue)]


def started(book: Ledger, **of: Any) -> Started:
    [answer] = begin(book, claim(type_="send", body=b"{}", **of))
    assert isinstance(answer, Started), answer
    return answer


def test_s051_what_the_broker_has_lost_goes_out_again_as_it_was_and_once(engine):
    row = build_row(Envelope(id="a", type="send", key="k", ordering_key="o", queue="emails", headers={"trace": "x"}), b'{"n": 1}', ordered=False)
    enqueue(engine, row)
    [first] = messages(relay(engine, hours=2))
    assert resend(engine, broker(), HOURLY) == [Resent(queue="emails", outstanding=1, overdue=1, on_broker=0, resent=1)]
    [again] = messages(relay(engine))
    assert again == first
    assert resend(engine, broker(), HOURLY) == [Resent(queue="emails", outstanding=1, overdue=0, on_broker=0, resent=0)]


def test_what_was_begun_is_left_alone_and_what_was_not_is_sent_again(engine):
    lost(engine, "done", "failed", "running", "new")
    book = open_ledger(engine, native_delay=False)
    finish(book, Done(started=started(book, key="done", job="done")))
    given = claim("failed", "failed", type_="send", body=b"{}")
    [answer] = begin(book, given)
    finish(book, Failed(started=answer, error="no", delay=0.0, final=True, claim=given))
    started(book, key="running", job="running")
    [told] = resend(engine, broker(), HOURLY)
    assert (told.outstanding, told.resent) == (1, 1)
    assert sent_again(engine) == ["new"]


def test_a_job_whose_worker_vanished_long_ago_is_sent_again(engine):
    lost(engine, "a")
    started(open_ledger(engine, lease=10.0), key="a", job="a")
    assert resend(engine, broker(), HOURLY) == []
    with engine.begin() as connection:
        connection.execute(update(ledger).values(lease_until=ledger.c.lease_until - 2 * HOUR))
    resend(engine, broker(), HOURLY)
    assert sent_again(engine) == ["a"]


def test_another_job_of_its_key_decides_only_where_it_has_done_the_same_work(engine):
    book = open_ledger(engine)
    for key in ("repeat", "conflict"):
        finish(book, Done(started=started(book, key=key, job=f"first of {key}")))
    enqueue(engine, new_row("a", "repeat"), new_row("b", "conflict", body=b'{"other": 1}'))
    relay(engine, hours=2)
    resend(engine, broker(), HOURLY)
    assert sent_again(engine) == ["b"]
    assert begin(book, claim("repeat", "a", type_="send", body=b"{}")) == [AlreadyDone()]


def test_a_key_that_was_freed_by_a_discard_hides_no_job(engine):
    book = open_ledger(engine, native_delay=False)
    given = claim("k", "first", type_="send", body=b"{}")
    [answer] = begin(book, given)
    finish(book, Failed(started=answer, error="no", delay=0.0, final=True, claim=given))
    assert book.discard(answer.id, job="first", replays=0, note="discarded: no")
    enqueue(engine, new_row("first", "k"), new_row("second", "k"))
    relay(engine, hours=2)
    resend(engine, broker(), HOURLY)
    assert sent_again(engine) == ["second"]


def test_of_a_job_that_was_tried_before_the_last_copy_is_sent_again(engine):
    lost(engine, "a")
    book = open_ledger(engine, native_delay=False)
    given = claim("a", "a", type_="send", body=b"{}")
    [answer] = begin(book, given)
    finish(book, Failed(started=answer, error="no", delay=5.0, final=False, claim=given))
    assert resend(engine, broker(), HOURLY) == []  # its copy waits in the outbox
    let_pass(engine, HOUR)
    relay(engine, hours=2)
    with engine.begin() as connection:
        connection.execute(update(ledger).values(retry_at=ledger.c.retry_at - 3 * HOUR))
    assert resend(engine, broker(), HOURLY)[0].resent == 1
    [again] = messages(relay(engine))
    assert read_envelope(again).copy == 1


def test_a_replay_that_was_lost_goes_out_as_the_message_that_the_ledger_waits_for(engine):
    lost(engine, "a")
    book = open_ledger(engine, native_delay=False)
    given = claim("a", "a", type_="send", body=b"{}")
    [answer] = begin(book, given)
    finish(book, Failed(started=answer, error="no", delay=0.0, final=True, claim=given))
    book.retry(answer.id, replays=0)
    resend(engine, broker(), HOURLY)
    [again] = messages(relay(engine))
    assert read_envelope(again).replays == 1
    assert isinstance(begin(book, claim("a", "a", type_="send", body=b"{}", replays=1))[0], Started)


def test_what_seems_to_wait_on_the_broker_is_left_alone_unless_it_is_forced(engine):
    enqueue(engine, *(new_row(f"job-{number}") for number in range(3)))
    full = relay(engine, hours=2)
    [told] = resend(engine, full, HOURLY)
    assert (told.waits, told.outstanding, told.on_broker, told.resent) == (True, 3, 3, 0)
    assert set(statuses(engine).values()) == {"sent"}
    assert resend(engine, full, HOURLY, force=True)[0].resent == 3
    assert set(statuses(engine).values()) == {"pending"}


def test_as_many_new_jobs_in_the_queue_as_old_ones_were_lost_do_not_hide_them(engine):
    lost(engine, "old-1", "old-2")
    enqueue(engine, new_row("new-1"), new_row("new-2"))
    [told] = resend(engine, relay(engine), HOURLY)
    assert (told.outstanding, told.overdue, told.on_broker, told.resent) == (4, 2, 2, 2)
    assert sent_again(engine) == ["old-1", "old-2"]


def test_a_dry_run_tells_and_changes_nothing(engine):
    lost(engine, "a", "b")
    assert resend(engine, broker(), HOURLY, dry_run=True)[0].resent == 2
    assert set(statuses(engine).values()) == {"sent"}


def test_queue_type_and_limit_narrow_it_down(engine):
    lost(engine, "a", "b", "c")
    lost(engine, "other", queue="steps")
    assert resend(engine, broker(), Overdue(types=["receive"]))[0].resent == 0
    assert [told.queue for told in resend(engine, broker(), Overdue(queues=["steps"]), dry_run=True)] == ["steps"]
    assert resend(engine, broker(), Overdue(queues=["emails"], types=["send"], limit=2))[0].resent == 2
    assert sent_again(engine) == ["a", "b"]


def test_what_was_sent_before_the_ledger_s_memory_begins_may_be_done_and_is_left_alone(engine):
    lost(engine, "a")
    assert resend(engine, broker(), Overdue(older_than=60.0, retention=HOUR)) == []
    with pytest.raises(ConfigurationError, match="leaves nothing to send"):
        Overdue(older_than=HOUR, retention=HOUR)


@pytest.mark.parametrize(
    ("wrong", "why"), [({"older_than": "1h"}, "older_than must be a number of seconds"), ({"limit": 0}, "limit must be at least 1")]
)
def test_an_option_that_can_t_be_is_refused(wrong, why):
    with pytest.raises(ConfigurationError, match=why):
        Overdue(**wrong)


def test_a_dead_letter_was_delivered_and_is_not_lost(engine):
    enqueue(engine, new_row("dead"), new_row("lost"))
    adapter = relay(engine, hours=2)
    consumer = adapter.consume({"emails": 1}, group="default", prefetch=10, name="w")
    dead, other = consumer.receive(10, 0.05)
    consumer.dead_letter(dead, "no handler for type 'send'")
    consumer.ack([other])
    [told] = resend(engine, adapter, HOURLY)
    assert (told.outstanding, told.resent) == (1, 1)
    assert sent_again(engine) == ["lost"]


def test_a_job_that_was_discarded_stays_so(engine):
    lost(engine, "a")
    with engine.begin() as connection:
        connection.execute(update(outbox).values(last_error="discarded: a test order; it was: no handler"))
    assert resend(engine, broker(), HOURLY) == []


def test_s056_in_an_ordered_queue_all_that_is_behind_a_lost_job_goes_with_it_in_order(engine):
    for number in range(3):
        lost(engine, f"old-{number}", key="k", queue="steps", ordered=True)
    enqueue(engine, new_row("new", "k", queue="steps", ordered=True), new_row("of another key", "x", queue="steps", ordered=True))
    adapter = relay(engine)
    [told] = resend(engine, adapter, Overdue(older_than=HOUR, limit=1))
    assert (told.outstanding, told.overdue, told.resent) == (5, 3, 4)
    with engine.connect() as connection:
        assert list(connection.execute(select(holdups.c.job).order_by(holdups.c.seq)).scalars()) == ["old-0", "old-1", "old-2", "new"]
    assert sent_again(engine, "steps") == ["old-0"]  # the next follows when it is done
    book = open_ledger(engine, native_delay=False)
    answers = begin(book, *(claim("k", "new", type_="send", body=b"{}", queue="steps", ordered=True) for _ in range(1)))
    assert not isinstance(answers[0], Started)  # though its first message is on the broker still, and comes before


def test_where_the_backend_keeps_the_order_itself_nobody_is_held_up(engine):
    lost(engine, "a", "b", key="k", queue="steps", ordered=True)
    adapter = Memory()
    adapter.ensure(QUEUES)
    assert resend(engine, adapter, HOURLY)[0].resent == 2
    assert [message.id for message in messages(relay(engine, adapter), "steps")] == ["a"]
    with engine.connect() as connection:
        assert connection.execute(select(holdups)).all() == []


def test_a_topic_s_job_is_sent_again_when_one_of_its_groups_has_lost_it(engine):
    lost(engine, "a", "b", queue="orders")
    book = open_ledger(engine, native_delay=False)
    for job, group in (("a", "mail"), ("a", "stock"), ("b", "mail")):
        finish(book, Done(started=started(book, key=job, job=job, queue=f"orders.{group}", group=group)))
    assert resend(engine, broker(), HOURLY) == [Resent(queue="orders.stock", outstanding=1, overdue=1, on_broker=0, resent=1)]
    assert sent_again(engine, "orders.stock") == ["b"]


def test_the_groups_that_an_application_declares_are_asked_after_though_none_has_done_anything(engine):
    jobs = Jobs()
    for group in ("mail", "stock"):
        jobs.handler("send", queue=QUEUES[2], group=group)(_send)
    lost(engine, "a", queue="orders")
    assert [told.queue for told in resend(engine, broker(), HOURLY, jobs=jobs)] == ["orders.mail", "orders.stock"]
    assert sent_again(engine, "orders.stock") == ["a"]


def test_the_retry_of_one_group_of_a_topic_is_sent_again_to_that_group_alone(engine):
    lost(engine, "a", queue="orders")
    book = open_ledger(engine, native_delay=False)
    finish(book, Done(started=started(book, key="a", job="a", queue="orders.mail", group="mail")))
    given = claim("a", "a", type_="send", body=b"{}", queue="orders.stock", group="stock")
    [answer] = begin(book, given)
    finish(book, Failed(started=answer, error="no", delay=0.0, final=False, claim=given))
    relay(engine, hours=2)
    with engine.begin() as connection:
        connection.execute(update(ledger).values(retry_at=ledger.c.retry_at - 2 * HOUR))
    assert resend(engine, broker(), HOURLY) == [Resent(queue="orders.stock", outstanding=1, overdue=1, on_broker=0, resent=1)]
    adapter = relay(engine)
    assert [read_envelope(message).copy for message in messages(adapter, "orders.stock")] == [1]
    assert messages(adapter, "orders.mail") == []


def test_what_another_service_has_done_under_the_same_key_hides_no_job(engine):
    book = open_ledger(engine)
    finish(book, Done(started=started(book, key="k", job="theirs", queue="steps", group="other service")))
    finish(book, Done(started=started(book, key="served", job="served")))
    enqueue(engine, new_row("ours", "k"))
    relay(engine, hours=2)
    resend(engine, broker(), HOURLY)
    assert sent_again(engine) == ["ours"]


def test_s063_a_row_that_has_moved_on_since_it_was_looked_at_is_not_touched(engine):
    lost(engine, "as it was", "dropped", "sent again")
    with engine.begin() as connection:
        seqs = list(connection.execute(select(outbox.c.seq)).scalars())
        clock = connection.execute(select(now())).scalar_one()
        connection.execute(update(outbox).where(outbox.c.id == "dropped").values(status="dropped"))
        connection.execute(update(outbox).where(outbox.c.id == "sent again").values(sent_at=clock + 1.0))
        assert len(send_again(connection, [Again(seq=seq) for seq in seqs], before=clock)) == 1
    assert statuses(engine) == {"as it was": "pending", "dropped": "dropped", "sent again": "sent"}


def test_two_who_resend_at_once_send_each_job_again_once(engine):
    lost(engine, *(f"job-{number}" for number in range(40)))
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(lambda _: resend(engine, broker(), HOURLY), range(4)))
    assert sum(each.resent for answer in told for each in answer) == 40
    assert len(sent_again(engine)) == 40


def test_many_are_read_and_sent_again_in_pages(engine):
    fill(engine, (f"job-{number}" for number in range(1203)), status="sent")
    assert resend(engine, broker(), HOURLY)[0].resent == 1203
    assert set(statuses(engine).values()) == {"pending"}


_READS_ALL_ROWS = re.compile(r"Seq Scan on postroom_(outbox|ledger)|SCAN (postroom_outbox|postroom_ledger|later)(?! USING)| ALL ")


@pytest.mark.parametrize("statistics", ["fresh", "of empty tables"])
def test_s082_the_search_goes_through_the_indexes_of_a_long_outbox(engine, statistics):
    if statistics == "of empty tables":
        analyze(engine, "postroom_outbox", "postroom_ledger")
    fill(engine, (f"job-{number}" for number in range(4000)), status="sent")
    book = open_ledger(engine)
    begin(book, *(claim(f"job-{number}", f"job-{number}", type_="send", body=b"{}") for number in range(2000)))
    if statistics == "fresh":
        analyze(engine, "postroom_outbox", "postroom_ledger")
    with plans_of(engine, r"(FROM|UPDATE) postroom_outbox") as plans:
        resend(engine, broker(), Overdue(older_than=2 * HOUR, limit=10))
    assert len(plans) > 3
    assert any("postroom_outbox_sent" in plan for plan in plans)
    assert not [plan for plan in plans if _READS_ALL_ROWS.search(plan)]


@pytest.fixture
def operator(sqlite_database_url: str, tmp_path: Path) -> Iterator[Callable[..., CompletedProcess[str]]]:
    """The command, where a job was sent to the queue of the database itself two hours ago."""
    engine, adapter = database(sqlite_database_url), connect(sqlite_database_url)
    adapter.ensure(QUEUES)
    enqueue(engine, new_row("a", "order-1"))
    relay(engine, adapter, hours=2)
    yield lambda *arguments: postroom(*arguments, cwd=tmp_path, POSTROOM_DATABASE=sqlite_database_url)
    adapter.close()
    engine.dispose()


def test_the_command_leaves_alone_what_seems_to_wait_and_says_so_with_exit_code_1(operator):
    answer = operator("resend")
    assert answer.returncode == 1
    assert answer.stdout.splitlines()[1].split() == ["emails", "1", "1", "1", "0"]
    why = "the broker holds as many as were not begun, so they seem to wait for a worker; --force sends them again"
    assert answer.stderr == f"postroom: left alone: emails: {why}\n"


def test_the_command_tells_each_queue_in_json(operator, sqlite_database_url):
    engine = database(sqlite_database_url)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM postroom_jobs"))
    engine.dispose()
    told = {"queue": "emails", "outstanding": 1, "overdue": 1, "on_broker": 0, "resent": 1, "waits": False}
    for options in (["--dry-run"], []):
        answer = operator("resend", "--queue", "emails", "--type", "send", "--json", *options)
        assert (answer.returncode, json.loads(answer.stdout), answer.stderr) == (0, told, "")
    again = operator("resend", "--json")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "postroom: nothing is overdue\n")


def test_status_has_a_hint_for_a_job_that_was_sent_long_ago(operator):
    said = operator("status", "order-1").stdout
    assert re.search("waits for a worker, 2h.* since it was sent; `postroom resend` if the broker has lost it", said)
