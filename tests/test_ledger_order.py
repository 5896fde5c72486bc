"""The order of an ordering key on a broker that can't hold a job back: what the ledger makes wait, and until when."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, event, select, text

from postroom.consumers.ledger import (
    AlreadyDone,
    Claim,
    Conflict,
    Dead,
    Done,
    Exhausted,
    Failed,
    Later,
    Ledger,
    Released,
    RetryScheduled,
    RunningElsewhere,
    Started,
    Waiting,
)
from postroom.outbox.envelope import digest
from postroom.outbox.holdups import Holdup, hold_up, let_go
from postroom.outbox.parked import Parked
from postroom.outbox.tables import CHANNEL, holdups, outbox
from support.ledgers import LEASE, begin, claim, database, finish, open_ledger, pass_time, start, waiting

IN_TURN = Waiting(retry_in=0.0)


@pytest.fixture
def book(engine: Engine) -> Ledger:
    return open_ledger(engine, native_delay=False)


def asked(job: str, *, key: str = "", ordering_key: str = "k", **how: Any) -> Claim:
    """A claim on a job of an ordered queue: each has a key of its own, and all one ordering key."""
    return claim(key or f"key-of-{job}", job, ordering_key=ordering_key, ordered=True, **how)


def fail(book: Ledger, a_claim: Claim, *, final: bool = False) -> None:
    finish(book, Failed(started=start(book, a_claim), claim=a_claim, error="no route", final=final))


def in_the_way(engine: Engine) -> list[str]:
    """The jobs that hold up their ordering key, in order."""
    with engine.connect() as connection:
        return list(connection.execute(select(holdups.c.job).order_by(holdups.c.seq)).scalars())


def test_a_retry_holds_up_the_later_jobs_of_its_ordering_key_until_it_is_done(engine, book):
    fail(book, asked("a"))
    assert begin(book, asked("b"), asked("other", ordering_key="k2"))[0] == IN_TURN
    assert [row.id for row in waiting(engine)] == ["a", "b"]
    again = start(book, asked("a", copy=1))
    assert again.holdup == Holdup("emails", "k", "a")
    assert begin(book, asked("c")) == [IN_TURN]
    finish(book, Done(started=again))
    assert in_the_way(engine) == ["b", "c"]
    assert begin(book, asked("c")) == [IN_TURN]
    finish(book, Done(started=start(book, asked("b"))))
    finish(book, Done(started=start(book, asked("c"))))
    assert in_the_way(engine) == []
    assert start(book, asked("d")).holdup is None


def test_a_retry_that_fails_again_keeps_its_place(engine, book):
    fail(book, asked("a"))
    begin(book, asked("b"))
    fail(book, asked("a", copy=1))
    assert in_the_way(engine) == ["a", "b"]


def test_a_dead_letter_holds_up_its_ordering_key_until_it_was_replayed_and_is_done(engine, book):
    fail(book, asked("a"), final=True)
    assert begin(book, asked("b")) == [IN_TURN]
    finish(book, Done(started=start(book, asked("a", replays=1))))
    assert isinstance(begin(book, asked("b"))[0], Started)


def test_a_dead_letter_that_is_given_up_for_good_holds_up_nobody(engine, book):
    fail(book, asked("a"), final=True)
    assert begin(book, asked("b")) == [IN_TURN]
    book.let_go(Holdup("emails", "k", "a"))
    book.let_go(Holdup("emails", "k", "a"))
    assert isinstance(begin(book, asked("b"))[0], Started)


def test_who_was_given_up_is_told_from_who_is_on_its_way(engine, book):
    def errors() -> dict[str, str | None]:
        with engine.connect() as connection:
            return {row.job: row.error for row in connection.execute(select(holdups))}

    fail(book, asked("a"))
    begin(book, asked("b"))
    assert errors() == {"a": None, "b": None}
    fail(book, asked("a", copy=1), final=True)
    assert errors() == {"a": "no route", "b": None}
    book.revive(Holdup("emails", "k", "a"))
    assert errors() == {"a": None, "b": None}
    assert isinstance(begin(book, asked("a", copy=1))[0], Exhausted)
    assert errors() == {"a": "no route", "b": None}
    fail(book, asked("a", replays=1))
    assert errors() == {"a": None, "b": None}
    assert isinstance(begin(book, asked("c", key="key-of-a", ordering_key="k2", body=b"another"))[0], Conflict)
    assert errors()["c"] == "conflict: key 'key-of-a' belongs to job a with payload {}; this one has {}".format(
        *(digest(body) for body in (b'{"order":4711}', b"another"))
    )
    assert in_the_way(engine) == ["a", "b", "c"]


def test_a_retry_that_the_broker_refused_and_a_person_discarded_holds_up_nobody(engine, book):
    fail(book, asked("a"))
    with engine.begin() as connection:
        connection.execute(outbox.update().values(status="parked", holds="k"))
    [row] = waiting(engine)
    Parked(engine).discard([row.seq], "too large")
    assert in_the_way(engine) == []


def test_a_copy_that_is_deferred_because_its_twin_runs_holds_up_the_jobs_behind_it_until_the_twin_is_done(engine, book):
    twin = start(book, asked("twin", key="order"))
    [answer] = begin(book, asked("a", key="order"))
    assert isinstance(answer, RunningElsewhere)
    assert begin(book, asked("b")) == [IN_TURN]
    finish(book, Done(started=twin))
    assert begin(book, asked("b")) == [IN_TURN]
    assert begin(book, asked("a", key="order")) == [AlreadyDone()]
    assert isinstance(begin(book, asked("b"))[0], Started)


def test_a_job_whose_worker_has_died_holds_up_the_jobs_behind_it_until_its_lease_is_over_and_it_is_done(engine, book):
    start(open_ledger(engine, "dead", native_delay=False), asked("a"))
    assert isinstance(begin(book, asked("a"))[0], RunningElsewhere)
    assert begin(book, asked("b")) == [IN_TURN]
    pass_time(engine, LEASE + 1)
    assert begin(book, asked("b")) == [IN_TURN]
    finish(book, Done(started=start(book, asked("a"))))
    assert isinstance(begin(book, asked("b"))[0], Started)


def test_a_conflict_and_a_job_of_a_key_that_has_failed_hold_up_the_jobs_behind_them(engine, book):
    finish(book, Done(started=start(book, claim("order", "first"))))
    [conflict] = begin(book, asked("a", key="order", body=b"another"))
    assert isinstance(conflict, Conflict)
    assert begin(book, asked("b")) == [IN_TURN]
    failed = claim("lost", "second")
    assert finish(book, Failed(started=start(book, failed), claim=failed, error="no", final=True)) == [Dead(attempts=1, last_error="no")]
    assert isinstance(begin(book, asked("c", key="lost", ordering_key="k2"))[0], Exhausted)
    assert begin(book, asked("d", ordering_key="k2")) == [IN_TURN]


def test_what_is_done_or_stale_does_not_wait_for_its_turn(engine, book):
    finish(book, Done(started=start(book, asked("b"))))
    fail(book, asked("a"))
    assert begin(book, asked("b"), asked("a")) == [AlreadyDone(), RetryScheduled()]
    assert in_the_way(engine) == ["a"]


def test_a_job_that_is_held_up_is_neither_begun_nor_charged(engine, book):
    start(open_ledger(engine, "dead", native_delay=False), asked("b"))
    fail(book, asked("a"))
    pass_time(engine, LEASE + 1)
    assert begin(book, asked("b")) == [IN_TURN]
    finish(book, Done(started=start(book, asked("a", copy=1))))
    assert start(book, asked("b")).attempt == 2


def test_released_jobs_and_jobs_asked_ahead_hold_up_nobody(engine, book):
    finish(book, Released(started=start(book, asked("a"))))
    assert begin(book, asked("b", max_attempts=1, ahead=True)) == [Later()]
    assert in_the_way(engine) == []


@pytest.mark.parametrize("how", [{"queue": "elsewhere"}, {"ordering_key": "k2"}])
def test_other_queues_and_other_keys_flow(engine, book, how):
    fail(book, asked("a"))
    assert isinstance(begin(book, asked("b", **how))[0], Started)


def test_a_handlers_own_transaction_lets_the_next_job_go_together_with_done_or_not_at_all(engine, book):
    fail(book, asked("a"))
    again = start(book, asked("a", copy=1))
    with engine.connect() as connection:
        book.finish_within(connection, Done(started=again))
        connection.rollback()
    assert in_the_way(engine) == ["a"]
    with engine.begin() as connection:
        book.finish_within(connection, Done(started=again))
    assert in_the_way(engine) == []


def test_who_holds_up_nobody_any_more_wakes_the_relays_and_nobody_else_does(postgresql_database_url: str):
    engine = database(postgresql_database_url)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as listener:
        driver: Any = listener.connection.driver_connection
        with engine.begin() as connection:
            hold_up(connection, [Holdup("emails", "k", "a")])
        driver.execute(f"LISTEN {CHANNEL}")
        for job in ("another", "a"):
            with engine.begin() as connection:
                let_go(connection, [Holdup("emails", "k", job)])
                connection.execute(text(f"SELECT pg_notify('{CHANNEL}', '{job} is over')"))
        heard: list[str] = []
        while "a is over" not in heard:
            heard += [notification.payload for notification in driver.notifies(timeout=10, stop_after=1)]
        driver.execute("UNLISTEN *")
    engine.dispose()
    assert heard == ["another is over", "", "a is over"]


def test_a_backend_that_holds_jobs_back_itself_keeps_the_order_itself(engine):
    book = open_ledger(engine, native_delay=True)
    fail(book, asked("a"))
    assert isinstance(begin(book, asked("b"))[0], Started)
    assert in_the_way(engine) == []


def test_order_costs_a_round_one_statement_and_nothing_where_nothing_is_ordered(engine, book):
    seen: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *given: seen.append(given[2]))
    begin(book, *(claim(f"order-{place}") for place in range(10)))
    unordered = len(seen)
    assert not any("holdups" in statement for statement in seen)
    seen.clear()
    begin(book, *(asked(f"job-{place}", ordering_key=f"k{place}") for place in range(10)))
    assert len(seen) == unordered + 1
    assert sum("holdups" in statement for statement in seen) == 1
