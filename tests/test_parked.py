"""Parked rows: seen, replayed once, or given up with a reason."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, Row, select, update

from postroom.adapters.errors import ConfigurationError, SchemaDrift
from postroom.adapters.seam import Queue
from postroom.adapters.sql.engine import open_engine
from postroom.outbox import Outbox
from postroom.outbox.envelope import read_envelope
from postroom.outbox.parked import Parked
from postroom.outbox.tables import outbox

BOX = Outbox("emails", queues=["reports", Queue(name="ledger", ordered=True)])


def park(engine: Engine, number: int = 1, *, queue: str = "emails", kind: str = "ping") -> list[int]:
    """Enqueue jobs and do to their rows what a relay does when the broker refuses them."""
    with engine.begin() as connection:
        ids = [BOX.enqueue(connection, kind, index, key=f"k{index}", queue=queue) for index in range(number)]
        mine = outbox.c.id.in_(ids)
        connection.execute(
            update(outbox).where(mine).values(status="parked", attempts=3, last_error="too large", retry_at=None, holds=outbox.c.ordering_key)
        )
        return list(connection.execute(select(outbox.c.seq).where(mine).order_by(outbox.c.seq)).scalars())


def row(engine: Engine, seq: int) -> Row:
    with engine.connect() as connection:
        return connection.execute(select(outbox).where(outbox.c.seq == seq)).one()


def test_a_parked_row_is_shown_with_its_message_and_its_reason(engine: Engine) -> None:
    [seq] = park(engine)
    [found] = Parked(engine).list()
    assert (found.seq, found.type, found.key, found.attempts, found.reason) == (seq, "ping", "k0", 3, "too large")
    assert (found.message.queue, found.message.body) == ("emails", b"0")
    assert read_envelope(found.message).key == "k0"


def test_the_list_is_read_in_pages(engine: Engine) -> None:
    seqs = park(engine, 7)
    parked, pages, after = Parked(engine), [], 0
    while page := parked.list(limit=3, after=after):
        pages.append([found.seq for found in page])
        after = page[-1].seq
    assert pages == [seqs[:3], seqs[3:6], seqs[6:]]


def test_the_list_can_be_narrowed_to_a_queue_and_a_type(engine: Engine) -> None:
    park(engine, 2)
    reports = park(engine, 2, queue="reports")
    others = park(engine, 1, queue="reports", kind="pong")
    parked = Parked(engine)
    assert [found.seq for found in parked.list(queue="reports")] == reports + others
    assert [found.seq for found in parked.list(type="pong")] == others
    assert [found.seq for found in parked.list(queue="emails", type="pong")] == []


def test_s067_parked_rows_have_a_count_of_their_own(engine: Engine) -> None:
    assert Parked(engine).counts() == {}
    park(engine, 2)
    park(engine, 3, queue="reports")
    with engine.begin() as connection:
        BOX.enqueue(connection, "ping", None)
    assert Parked(engine).counts() == {"emails": 2, "reports": 3}


def test_a_replay_puts_a_row_back_at_its_old_place_with_a_clean_count(engine: Engine) -> None:
    [seq] = park(engine)
    before = row(engine, seq)
    assert Parked(engine).replay([seq]) == [seq]
    after = row(engine, seq)
    assert (after.status, after.attempts, after.retry_at, after.holds) == ("pending", 0, None, None)
    assert (after.available_at, after.id, after.body, after.headers) == (before.available_at, before.id, before.body, before.headers)
    assert after.last_error == "too large"


def test_a_replay_run_twice_replays_once(engine: Engine) -> None:
    seqs = park(engine, 3)
    parked = Parked(engine)
    assert list(parked.replay(seqs)) == seqs
    with engine.begin() as connection:
        connection.execute(update(outbox).values(status="sent"))
    assert list(parked.replay(seqs)) == []
    assert row(engine, seqs[0]).status == "sent"


def test_two_operators_who_replay_at_once_replay_each_row_once(engine: Engine) -> None:
    seqs = park(engine, 40)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(Parked(engine).replay, [seqs, seqs[::-1], seqs[:20], seqs[20:]]))
    assert sorted(seq for answer in answers for seq in answer) == seqs


def test_only_parked_rows_are_replayed_or_discarded(engine: Engine) -> None:
    with engine.begin() as connection:
        BOX.enqueue(connection, "ping", None)
        seq = connection.execute(select(outbox.c.seq)).scalar_one()
    parked = Parked(engine)
    assert list(parked.replay([seq, seq + 1000])) == []
    assert list(parked.discard([seq], "no longer wanted")) == []
    assert list(parked.replay([])) == []
    assert row(engine, seq).status == "pending"


def test_a_discarded_row_keeps_the_reason_and_holds_nobody(engine: Engine) -> None:
    [seq] = park(engine, queue="ledger")
    assert Parked(engine).discard([seq], "the customer is gone") == [seq]
    found = row(engine, seq)
    assert (found.status, found.holds, found.last_error) == ("dropped", None, "discarded: the customer is gone; it was: too large")
    assert found.sent_at is not None
    assert Parked(engine).list() == []
    assert list(Parked(engine).replay([seq])) == []


def test_a_reason_is_asked_for(engine: Engine) -> None:
    [seq] = park(engine)
    with pytest.raises(ConfigurationError, match=r"^reason: "):
        Parked(engine).discard([seq], "  ")
    assert row(engine, seq).status == "parked"


def test_s137_a_reason_with_a_nul_or_a_lone_surrogate_does_not_stop_the_discard(engine: Engine) -> None:
    [seq] = park(engine)
    Parked(engine).discard([seq], "bad\0text \ud800" + "x" * 100_000)
    assert row(engine, seq).status == "dropped"
    assert row(engine, seq).last_error.startswith("discarded: bad\ufffdtext ?xxx")


def test_missing_tables_are_told_with_the_remedy(database_url: str) -> None:
    engine = open_engine(database_url)
    with pytest.raises(SchemaDrift, match="postroom schema create"):
        Parked(engine).list()
    engine.dispose()
