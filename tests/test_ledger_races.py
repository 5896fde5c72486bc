"""Ledgers of many workers on one database at the same time."""

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from sqlalchemy import text

from postroom.adapters.errors import Unavailable
from postroom.consumers.ledger import AlreadyDone, Done, Failed, Finished, Lost, RunningElsewhere, Started, Waiting
from postroom.consumers.ledger.entry import Holder
from postroom.consumers.ledger.round import Round
from support.ledgers import LEASE, begin, claim, database, finish, open_ledger, pass_time, row, rows, start, waiting

MANY = 50


@pytest.fixture
def engine(database_url):
    engine = database(database_url, pool_size=MANY)
    yield engine
    engine.dispose()


@pytest.fixture
def server(server_database_url):
    """An engine on a database with several connections that write."""
    engine = database(server_database_url, pool_size=8)
    yield engine
    engine.dispose()


def at_once(works):
    """The results of all works, begun at the same moment in threads of their own."""
    ready = threading.Barrier(len(works))

    def run(work):
        ready.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [done.result() for done in [pool.submit(run, work) for work in works]]


def test_s091_of_fifty_workers_that_get_one_key_at_once_one_starts(engine):
    books = [open_ledger(engine, f"worker-{place}") for place in range(MANY)]
    answers = at_once([partial(begin, book, claim()) for book in books])
    assert Counter(type(answer) for [answer] in answers) == {Started: 1, RunningElsewhere: MANY - 1}


def test_s105_of_fifty_workers_that_get_an_expired_key_at_once_one_starts_and_one_attempt_is_charged(engine):
    start(open_ledger(engine, "gone"))
    pass_time(engine, LEASE + 1)
    books = [open_ledger(engine, f"worker-{place}") for place in range(MANY)]
    answers = at_once([partial(begin, book, claim()) for book in books])
    assert Counter(type(answer) for [answer] in answers) == {Started: 1, RunningElsewhere: MANY - 1}
    assert row(engine).attempts == 1


def test_s104_a_done_key_is_done_for_all_who_ask_at_once(engine):
    book = open_ledger(engine)
    finish(book, Done(started=start(book)))
    before = row(engine)
    assert {answer for [answer] in at_once([partial(begin, book, claim())] * 10)} <= {AlreadyDone(), RunningElsewhere(retry_in=1.0)}
    assert row(engine) == before


def test_s108_an_attempt_that_is_finished_and_taken_over_at_once_ends_one_way(engine):
    for place in range(20):
        key = f"order-{place}"
        old = open_ledger(engine, "old")
        first = start(old, claim(key))
        pass_time(engine, LEASE + 1)
        new = open_ledger(engine, "new")
        [[stored], [answer]] = at_once([partial(finish, old, Done(started=first)), partial(begin, new, claim(key))])
        by_key = {each.key: each for each in rows(engine)}
        if isinstance(answer, Started):
            assert (stored, by_key[key].status, by_key[key].fence) == (Lost(), "running", answer.fence)
        else:
            assert (stored, by_key[key].status) == (Finished(), "done")


def test_rounds_over_the_same_keys_in_any_order_neither_deadlock_nor_run_a_key_twice(engine):
    """Each worker claims and finishes overlapping sets of keys, shuffled, until every key is done."""
    keys = [f"order-{place}" for place in range(60)]
    runs = Counter()

    def work(name):
        rng, book, mine = random.Random(name), open_ledger(engine, name), []  # noqa: S311 - a test's own order
        for _ in range(12):
            asked = [claim(key, f"job-of-{name}") for key in rng.sample(keys, 20)]
            results, answers = book.round(mine, asked)
            assert set(results) <= {Finished()}
            begun = [(each, answer) for each, answer in zip(asked, answers, strict=True) if isinstance(answer, Started)]
            runs.update(each.envelope.key for each, _ in begun)
            mine = [Done(started=answer) for _, answer in begun]
        book.round(mine, [])

    at_once([partial(work, f"worker-{name}") for name in range(6)])
    assert set(runs.values()) == {1}
    assert {each.status for each in rows(engine)} == {"done"}
    assert len(runs) == len(keys)


def test_renewals_do_not_deadlock_with_the_rounds_of_their_own_worker(engine):
    book = open_ledger(engine)
    ended = threading.Event()

    def renew():
        lost = set()
        while not ended.is_set():
            lost |= set(book.renew())
        return lost

    def rounds():
        mine = []
        try:
            for turn in range(25):
                results, answers = book.round(random.sample(mine, len(mine)), [claim(f"order-{turn}-{place}") for place in range(40)])
                assert set(results) <= {Finished()}
                mine = [Done(started=answer) for answer in answers]
        finally:
            ended.set()

    lost, _ = at_once([renew, rounds])
    assert lost == set()


@pytest.fixture
def open_round(server):
    """A round of another worker that has begun the key and has not committed yet."""
    connection = server.connect()
    transaction = connection.begin()
    other = Round(connection, Holder(worker="other", fence=1, lease=LEASE), native_delay=True)
    assert isinstance(other.run([], [claim()])[1][0], Started)
    yield transaction
    connection.close()


@pytest.mark.parametrize(("end", "answered"), [("rollback", Started), ("commit", RunningElsewhere)])
def test_s092_who_meets_an_uncommitted_begin_waits_for_how_it_ends(server, open_round, end, answered, monkeypatch):
    monkeypatch.setattr("postroom.consumers.ledger.bounds._SETTINGS", {})  # no bound: we may need longer than a second to look
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(begin, open_ledger(server), claim())
        until_somebody_waits_for_a_lock(server)
        assert not asked.done()
        getattr(open_round, end)()
        assert isinstance(asked.result()[0], answered)


@pytest.mark.parametrize("native_delay", [True, False])
def test_s092_the_wait_for_a_begin_that_does_not_end_is_bounded_and_costs_nobody_else(server, open_round, native_delay):
    book = open_ledger(server, native_delay=native_delay)
    known = start(book, claim("known"))
    results, answers = book.round([Done(started=known)], [claim("before"), claim(), claim("zz-behind")])
    assert results == [Finished()]
    assert [type(answer) for answer in answers] == [Started, RunningElsewhere, Started]
    assert len(waiting(server)) == (0 if native_delay else 1)
    open_round.rollback()
    assert isinstance(begin(book, claim())[0], Started)


def test_a_job_whose_key_another_worker_is_just_beginning_holds_up_the_jobs_behind_it(server, open_round):
    book = open_ledger(server, native_delay=False)
    [answer] = begin(book, claim(ordering_key="k", ordered=True))
    assert isinstance(answer, RunningElsewhere)
    assert begin(book, claim("behind", "behind", ordering_key="k", ordered=True)) == [Waiting(retry_in=0.0)]


def test_s092_a_finish_that_is_blocked_for_too_long_says_so_and_can_be_handed_in_again(server):
    book = open_ledger(server)
    started = start(book)
    with server.begin() as connection:
        connection.execute(text("SELECT id FROM postroom_ledger FOR UPDATE"))
        with pytest.raises(Unavailable, match="more than 1 s"):
            finish(book, Done(started=started))
        with pytest.raises(Unavailable, match="more than 1 s"):
            book.abandon("worker-1", {})
    assert finish(book, Done(started=started)) == [Finished()]


def test_the_wait_for_a_lock_is_bounded_for_the_ledger_only(server):
    """A handler's session may come from the same pool."""
    book = open_ledger(server)
    finish(book, Done(started=start(book)))
    settings = {"postgresql": "SHOW lock_timeout", "mysql": "SELECT @@SESSION.innodb_lock_wait_timeout"}
    plans = {"postgresql": "SHOW enable_seqscan", "mysql": "SELECT 'on'"}
    with server.connect() as connection:
        assert connection.execute(text(settings[server.dialect.name])).scalar() in {"0", 50}
        assert connection.execute(text(plans[server.dialect.name])).scalar() == "on"


def test_a_key_whose_row_another_transaction_is_changing_is_not_waited_for(server):
    """MySQL finds out by its INSERT, which waits: there the bound of a second answers."""
    book = open_ledger(server)
    finish(book, Failed(started=start(book), claim=claim(), error="no route"))
    with server.begin() as connection:
        connection.execute(text("SELECT id FROM postroom_ledger FOR UPDATE"))
        assert begin(book, claim()) == [RunningElsewhere(retry_in=1.0)]
    assert isinstance(begin(book, claim())[0], Started)


def until_somebody_waits_for_a_lock(engine):
    """Return when the server says that a transaction of this database waits for another one; fail after a minute."""
    asked = {
        "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
        "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
    }
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with engine.connect() as connection:
            if connection.execute(text(asked[engine.dialect.name])).scalar():
                return
        time.sleep(0.15)  # InnoDB shows nothing new to those who look more often
    pytest.fail("nobody waits")
