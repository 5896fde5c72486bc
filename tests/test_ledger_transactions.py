"""Transactional handlers: effects, outgoing jobs and `done` commit together or not at all, on each kind of database."""

import pytest
from sqlalchemy import text

from postroom.adapters.errors import LeaseLost
from postroom.consumers.ledger import Done, Failed, Finished
from postroom.outbox.envelope import Envelope
from postroom.outbox.rows import build_row
from support.ledgers import claim, finish, open_ledger, pass_time, row, start, waiting


def outgoing():
    return build_row(Envelope(id="job-next", type="print-label", key="order-4711", ordering_key="order-4711", queue="labels"), b"{}", ordered=False)


def send_within(engine, book, done):
    """A transactional handler: its effect and its end in one transaction."""
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO sent VALUES (4711)"))
        book.finish_within(connection, done)


@pytest.fixture
def sent(engine):
    """A handler's own table: how many emails were sent."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE sent (order_id INTEGER)"))

    def count():
        with engine.connect() as connection:
            return connection.execute(text("SELECT count(*) FROM sent")).scalar()

    return count


def test_s089_effects_and_done_and_outgoing_jobs_are_one_transaction(engine, book, sent):
    send_within(engine, book, Done(started=start(book), outgoing=[outgoing()]))
    assert (row(engine).status, sent(), len(waiting(engine))) == ("done", 1, 1)


def test_s088_when_that_transaction_does_not_commit_the_job_runs_again(engine, book, sent, monkeypatch):
    started = start(book)
    with monkeypatch.context() as patch:
        patch.setattr(engine.dialect, "do_commit", engine.dialect.do_rollback)
        send_within(engine, book, Done(started=started, outgoing=[outgoing()]))
    assert (row(engine).status, sent(), waiting(engine)) == ("running", 0, [])
    assert finish(book, Failed(started=started, claim=claim(), error="commit failed")) == [Finished()]
    assert start(book).attempt == 2


def test_s107_the_effects_of_an_attempt_that_lost_its_lease_roll_back(engine, book, sent):
    first = start(book)
    pass_time(engine, 1001)
    second = start(open_ledger(engine, "worker-2"))
    with pytest.raises(LeaseLost, match="attempt 1"):
        send_within(engine, book, Done(started=first, outgoing=[outgoing()]))
    assert (sent(), waiting(engine)) == (0, [])
    send_within(engine, book, Done(started=second))
    assert (row(engine).status, sent()) == ("done", 1)


def test_an_attempt_can_be_done_within_a_transaction_only_once(engine, book, sent):
    done = Done(started=start(book))
    send_within(engine, book, done)
    with pytest.raises(LeaseLost):
        send_within(engine, book, done)
    assert sent() == 1
