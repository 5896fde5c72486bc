"""Rounds on each kind of database: what is begun, stored, deferred and armed again, and that it is one transaction."""

import pytest
from sqlalchemy import event

from postroom.adapters.errors import ConfigurationError
from postroom.consumers.ledger import (
    AlreadyDone,
    Conflict,
    Dead,
    Done,
    Exhausted,
    Failed,
    Finished,
    Later,
    Ledger,
    Lost,
    Released,
    RetryScheduled,
    RunningElsewhere,
    Started,
    Waiting,
)
from postroom.outbox.envelope import Envelope, read_envelope
from postroom.outbox.rows import build_row, message_of
from postroom.outbox.tables import MAX_KEY
from support.ledgers import begin, claim, database, finish, open_ledger, pass_time, row, rows, start, waiting


@pytest.fixture
def broker_book(engine):
    """A ledger before a broker without delays of its own."""
    return open_ledger(engine, native_delay=False)


def outgoing(job="job-next", key="order-4711-next"):
    return build_row(Envelope(id=job, type="print-label", key=key, ordering_key=key, queue="labels"), b"{}", ordered=False)


def test_s109_a_new_key_is_started_and_its_attempt_is_durable_before_the_handler_runs(engine, book):
    started = start(book)
    stored = row(engine)
    assert (started.attempt, started.max_attempts, started.solo, started.last_error) == (1, 3, False, None)
    assert (stored.id, stored.fence, stored.status, stored.attempts, stored.worker) == (started.id, started.fence, "running", 0, "worker-1")
    assert stored.lease_until == pytest.approx(stored.taken_at + 1000)
    assert (stored.job_id, stored.queue, stored.enqueued_at) == ("job-a", "emails", 1.0)


def test_a_done_job_is_done_and_its_message_is_acked_ever_after(engine, book):
    started = start(book)
    assert finish(book, Done(started=started)) == [Finished()]
    assert begin(book, claim(), claim(job="job-b")) == [AlreadyDone(), AlreadyDone()]
    assert (row(engine).status, row(engine).lease_until, row(engine).worker) == ("done", None, None)


def test_s104_a_duplicate_of_a_done_job_changes_nothing_in_its_row(engine, book):
    finish(book, Done(started=start(book)))
    before = row(engine)
    begin(book, claim(), claim(job="job-b"), claim(body=b"{}"))
    assert row(engine) == before


def test_s090_a_failed_attempt_frees_its_key_for_the_next_one(engine, book):
    assert finish(book, Failed(started=start(book), claim=claim(), error="no route")) == [Finished()]
    second = start(book)
    assert (second.attempt, second.last_error, second.solo) == (2, "no route", False)
    finish(book, Done(started=second))
    assert (row(engine).status, row(engine).attempts) == ("done", 1)


def test_a_retry_is_due_after_its_delay(engine, book):
    finish(book, Failed(started=start(book), claim=claim(), error="no route", delay=500.0))
    [answer] = begin(book, claim())
    assert isinstance(answer, Waiting)
    assert 490 < answer.retry_in <= 500
    pass_time(engine, 501)
    assert start(book).attempt == 2


def test_the_last_failure_leaves_the_key_failed_and_every_later_message_exhausted(engine, book):
    for _ in range(2):
        finish(book, Failed(started=start(book), claim=claim(), error="no route"))
    assert finish(book, Failed(started=start(book), claim=claim(), error="no bridge")) == [Dead(attempts=3, last_error="no bridge")]
    assert begin(book, claim()) == [Exhausted(attempts=3, last_error="no bridge")]
    assert (row(engine).status, row(engine).attempts) == ("failed", 3)


def test_a_final_failure_is_the_last_one(book):
    assert finish(book, Failed(started=start(book), claim=claim(), error="no order", final=True)) == [Dead(attempts=1, last_error="no order")]
    assert begin(book, claim()) == [Exhausted(attempts=1, last_error="no order")]


def test_a_released_job_starts_again_uncharged(book):
    assert finish(book, Released(started=start(book))) == [Finished()]
    assert start(book).attempt == 1


def test_s105_an_attempt_whose_lease_ran_out_is_charged_when_its_message_comes_back(engine, book):
    start(book)
    assert isinstance(begin(book, claim())[0], RunningElsewhere)
    pass_time(engine, 1001)
    second = start(open_ledger(engine, "worker-2"))
    assert (second.attempt, second.solo, second.last_error) == (2, True, "lease expired")
    assert row(engine).worker == "worker-2"


def test_s109_a_job_whose_lease_ran_out_on_each_attempt_is_exhausted_without_a_further_run(engine, book):
    for _ in range(3):
        start(book)
        pass_time(engine, 1001)
    assert begin(book, claim()) == [Exhausted(attempts=3, last_error="lease expired")]
    assert (row(engine).status, row(engine).attempts) == ("failed", 3)
    assert row(engine).finished_at is not None


@pytest.mark.parametrize("make", [lambda started: Done(started=started), lambda started: Failed(started=started, claim=claim(), error="late")])
def test_s107_s108_an_attempt_that_lost_its_lease_can_write_nothing(engine, book, make):
    first = start(book)
    pass_time(engine, 1001)
    second = start(open_ledger(engine, "worker-2"))
    assert finish(book, make(first)) == [Lost()]
    assert row(engine).fence == second.fence
    finish(book, Done(started=second))
    assert finish(book, make(first)) == [Lost()]
    assert row(engine).status == "done"


def test_s133_a_late_finish_of_an_exhausted_attempt_does_not_touch_the_replayed_one(engine, book):
    third = None
    for _ in range(3):
        third = start(book)
        pass_time(engine, 1001)
    begin(book, claim())
    assert book.retry(row(engine).id, replays=0)
    fourth = start(book, claim(replays=1))
    assert finish(book, Done(started=third)) == [Lost()]
    assert (row(engine).status, row(engine).fence) == ("running", fourth.fence)


def test_the_same_key_with_another_payload_is_a_conflict_and_the_first_is_untouched(engine, book):
    started = start(book)
    before = row(engine)
    [answer] = begin(book, claim(job="job-b", body=b'{"order":4712}'))
    assert answer == Conflict(ours=claim(body=b'{"order":4712}').digest, theirs=before.digest, owner=before.job_id)
    assert row(engine) == before
    assert finish(book, Done(started=started)) == [Finished()]


def test_s100_a_key_belongs_to_one_type_and_one_group(engine, book):
    answers = begin(book, claim(), claim(type_="print-label"), claim(group="billing"))
    assert [type(answer) for answer in answers] == [Started, Started, Started]
    assert len({answer.id for answer in answers}) == 3


NEAR = [("Bot-A", "bot-a"), ("x", "x "), ("x", " x"), ("cafe", "café"), ("caf\u00e9", "cafe\u0301"), ("ß", "ss"), ("k", "k\t")]


@pytest.mark.parametrize("final", [False, True])
def test_s137_whatever_an_error_says_its_attempt_ends_as_failed(engine, book, final):
    said = "a\0b \ud800 \N{PILE OF POO}" + "ü" * 200_000
    [result] = finish(book, Failed(started=start(book), claim=claim(), error=said, final=final))
    assert isinstance(result, Dead if final else Finished)
    assert (row(engine).status, row(engine).last_error[:7]) == ("failed" if final else "pending", "a\N{REPLACEMENT CHARACTER}b ? \N{PILE OF POO}")


@pytest.mark.parametrize(("one", "other"), NEAR)
def test_s097_keys_that_differ_in_any_byte_are_two_keys(book, one, other):
    assert [type(answer) for answer in begin(book, claim(one), claim(other))] == [Started, Started]
    assert [type(answer) for answer in begin(book, claim(one), claim(other))] == [RunningElsewhere, RunningElsewhere]


ODD = ["'", '"', "\\", "%s", "%(x)s", ":x", "$1", "{}", "null", "4711", "😀", "\u2028", "<é>\x7f", "k" * MAX_KEY, "€" * (MAX_KEY // 3)]


@pytest.mark.parametrize("key", ODD)
def test_a_key_may_hold_anything_and_is_found_again(engine, book, key):
    started = start(book, claim(key))
    assert isinstance(begin(book, claim(key))[0], RunningElsewhere)
    assert finish(book, Done(started=started)) == [Finished()]
    assert begin(book, claim(key)) == [AlreadyDone()]
    assert row(engine).key == key


def test_an_error_may_hold_anything_and_is_cut(engine, book):
    error = "\0 \ud800 😀 'quoted' \\ %s :x " + "x" * 200_000
    assert finish(book, Failed(started=start(book), claim=claim(), error=error)) == [Finished()]
    assert row(engine).last_error.startswith("\ufffd ? 😀 'quoted' \\ %s :x xxx")
    assert len(row(engine).last_error.encode()) <= 8000


def test_of_two_claims_on_a_new_key_in_one_round_the_first_starts(engine, book):
    answers = begin(book, claim(), claim(job="job-b"), claim(job="job-c", body=b"{}"))
    assert [type(answer) for answer in answers] == [Started, RunningElsewhere, Conflict]
    assert row(engine).job_id == "job-a"


def test_of_two_claims_on_a_known_key_in_one_round_the_first_starts(engine, book):
    finish(book, Released(started=start(book)))
    answers = begin(book, claim(job="job-b"), claim())
    assert [type(answer) for answer in answers] == [Started, RunningElsewhere]
    assert row(engine).job_id == "job-b"


def test_a_claim_in_the_round_that_finishes_its_key_sees_it_finished(book):
    one, two, three = (start(book, claim(key)) for key in ("one", "two", "three"))
    ended = [Done(started=one), Failed(started=two, claim=claim("two"), error="no"), Released(started=three)]
    results, answers = book.round(ended, [claim("three"), claim("two"), claim("one")])
    assert results == [Finished()] * 3
    assert [type(answer) for answer in answers] == [Started, Started, AlreadyDone]
    assert [answer.attempt for answer in answers[:2]] == [1, 2]


def test_what_must_be_begun_first_is_put_off_when_asked_ahead_and_nothing_is_stored(engine, book):
    assert begin(book, claim(ahead=True, max_attempts=1)) == [Later()]
    assert rows(engine) == []
    assert isinstance(begin(book, claim(ahead=True))[0], Started)


def test_what_must_be_begun_first_leaves_its_expired_row_as_it_is(engine, book):
    start(book)
    pass_time(engine, 1001)
    before = row(engine)
    assert begin(book, claim(ahead=True)) == [Later()]
    assert row(engine) == before


def test_a_round_of_many_answers_each_in_its_place(engine, book):
    known = {name: start(book, claim(name)) for name in ("done", "failed", "running")}
    finish(book, Done(started=known["done"]), Failed(started=known["failed"], claim=claim("failed"), error="no", final=True))
    asked = [claim(f"new-{place}") if place % 4 == 0 else claim(("done", "failed", "running")[place % 4 - 1]) for place in range(200)]
    answers = begin(book, *asked)
    assert [type(answer) for answer in answers] == [Started, AlreadyDone, Exhausted, RunningElsewhere] * 50
    assert finish(book, *(Done(started=answer) for answer in answers[::4])) == [Finished()] * 50


def test_an_empty_round_does_nothing(engine, book):
    assert book.round([], []) == ([], [])


def test_what_a_done_job_enqueued_is_stored_with_it(engine, book):
    finish(book, Done(started=start(book), outgoing=[outgoing("job-1"), outgoing("job-2")]))
    assert [sent.id for sent in waiting(engine)] == ["job-1", "job-2"]


def test_what_a_lost_attempt_enqueued_is_dropped(engine, book):
    lost = start(book)
    pass_time(engine, 1001)
    second = start(book)
    results = finish(book, Done(started=lost, outgoing=[outgoing("job-lost")]), Done(started=second, outgoing=[outgoing("job-kept")]))
    assert results == [Lost(), Finished()]
    assert [sent.id for sent in waiting(engine)] == ["job-kept"]


def test_s120_a_round_handed_in_again_stores_nothing_twice(engine, broker_book):
    one, two = start(broker_book, claim("one")), start(broker_book, claim("two"))
    finishes = [Done(started=one, outgoing=[outgoing()]), Failed(started=two, claim=claim("two"), error="no route", delay=5.0)]
    assert finish(broker_book, *finishes) == finish(broker_book, *finishes) == [Finished(), Finished()]
    assert [sent.id for sent in waiting(engine)] == ["job-next", "job-a"]
    assert [stored.attempts for stored in rows(engine)] == [0, 1]


def test_s120_a_round_that_fails_leaves_nothing_of_itself_behind(engine, book):
    started = start(book)
    broken = outgoing() | {"body": None}
    with pytest.raises(Exception, match=r"(?i)null"):
        book.round([Done(started=started, outgoing=[broken])], [claim("order-4712")])
    assert [(stored.status, stored.key) for stored in rows(engine)] == [("running", "order-4711")]
    assert waiting(engine) == []
    assert finish(book, Done(started=started)) == [Finished()]


def test_s120_what_a_round_without_an_answer_had_begun_is_begun_again_uncharged(engine, book, monkeypatch):
    """The commit was done and its answer was lost: the worker asks again, and nobody has run the first one."""
    commit = engine.dialect.do_commit

    def commit_and_be_cut_off(connection):
        commit(connection)
        raise ConnectionResetError

    with monkeypatch.context() as patch:
        patch.setattr(engine.dialect, "do_commit", commit_and_be_cut_off)
        with pytest.raises(ConnectionResetError):
            begin(book, claim(max_attempts=1))
    assert row(engine).status == "running"
    assert isinstance(begin(open_ledger(engine, "worker-2"), claim(max_attempts=1))[0], RunningElsewhere)
    again = start(book, claim(max_attempts=1))
    assert (again.attempt, again.solo) == (1, False)
    assert finish(book, Done(started=again)) == [Finished()]


def test_s090_without_native_delay_the_retry_is_a_newer_copy_in_the_outbox(engine, broker_book):
    asked = claim(queue="emails.high")
    finish(broker_book, Failed(started=start(broker_book, asked), claim=asked, error="no route", delay=40.0))
    [sent] = waiting(engine)
    envelope = read_envelope(message_of(sent))
    assert (envelope.id, envelope.key, envelope.copy, envelope.replays, envelope.enqueued_at) == ("job-a", "order-4711", 1, 0, 1.0)
    assert (sent.queue, bytes(sent.body), sent.status, sent.holds) == ("emails.high", asked.message.body, "pending", None)
    assert sent.available_at == pytest.approx(row(engine).retry_at, abs=5)
    assert row(engine).copy == 1


def test_s119_the_delivery_behind_a_retry_is_stale_when_it_comes_once_more(engine, broker_book):
    finish(broker_book, Failed(started=start(broker_book), claim=claim(), error="no route"))
    assert begin(broker_book, claim(), claim()) == [RetryScheduled(), RetryScheduled()]
    assert start(broker_book, claim(copy=1)).attempt == 2
    assert len(waiting(engine)) == 1


def test_no_copy_is_made_for_a_last_failure(engine, broker_book):
    assert finish(broker_book, Failed(started=start(broker_book), claim=claim(), error="no", final=True)) == [Dead(attempts=1, last_error="no")]
    assert waiting(engine) == []


@pytest.mark.parametrize("other", [{}, {"job": "job-b"}])
def test_s093_without_native_delay_a_deferred_copy_is_stored_before_its_delivery_is_acked(engine, broker_book, other):
    start(broker_book)
    [answer] = begin(broker_book, claim(**other))
    assert isinstance(answer, RunningElsewhere)
    [sent] = waiting(engine)
    envelope = read_envelope(message_of(sent))
    assert (envelope.id, envelope.copy) == (claim(**other).envelope.id, 0)
    assert sent.available_at - sent.enqueued_at > 30


def test_s093_a_deferred_copy_takes_over_when_the_first_attempt_has_died_and_is_acked_when_it_is_done(engine, broker_book):
    start(broker_book)
    begin(broker_book, claim())
    pass_time(engine, 1001)
    [sent] = waiting(engine)
    second = start(broker_book, claim(copy=read_envelope(message_of(sent)).copy))
    assert second.attempt == 2
    finish(broker_book, Done(started=second))
    assert begin(broker_book, claim()) == [AlreadyDone()]


def test_a_job_that_waits_for_anothers_retry_is_deferred_through_the_outbox_too(engine, broker_book):
    finish(broker_book, Failed(started=start(broker_book), claim=claim(), error="no route", delay=40.0))
    assert isinstance(begin(broker_book, claim(job="job-b"))[0], Waiting)
    assert [sent.id for sent in waiting(engine)] == ["job-a", "job-b"]


def test_with_native_delay_the_outbox_stays_empty(engine, book):
    started = start(book)
    begin(book, claim(), claim(job="job-b"))
    finish(book, Failed(started=started, claim=claim(), error="no route", delay=40.0))
    begin(book, claim(), claim(job="job-b"))
    assert waiting(engine) == []


@pytest.mark.parametrize(("worker", "lease"), [("", 30.0), ("w" * 101, 30.0), ("w", 0.0), ("w", -1.0), ("w", float("nan"))])
def test_a_ledger_with_a_name_or_lease_that_can_not_work_is_refused(sqlite_database_url, worker, lease):
    engine = database(sqlite_database_url)
    with pytest.raises(ConfigurationError):
        Ledger(engine, worker=worker, lease=lease, native_delay=True)
    engine.dispose()


def test_fences_are_never_the_same(engine, book):
    fences = {answer.fence for place in range(50) for answer in begin(book, claim(f"order-{place}"))}
    assert len(fences) == 50


def test_when_all_goes_well_a_round_is_a_few_statements_however_many_jobs_it_has(engine, book):
    started = begin(book, *(claim(f"order-{place}") for place in range(128)))
    seen = []
    event.listen(engine, "before_cursor_execute", lambda *given: seen.append(given[2].split()[0]))
    book.round([Done(started=answer) for answer in started], [claim(f"next-{place}") for place in range(128)])
    assert (
        seen
        == {
            "sqlite": ["BEGIN", "INSERT", "UPDATE"],
            "postgresql": ["SET", "INSERT", "UPDATE"],
            "mysql": ["SET", "SELECT", "SELECT", "INSERT", "SELECT", "SELECT", "UPDATE", "SET"],
        }[engine.dialect.name]
    )
