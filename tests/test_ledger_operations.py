"""What happens to the ledger's rows outside rounds: renewal, a dead process, an operator's retry, retention; and what bad claims meet."""

import pytest
from sqlalchemy import update

from postroom.adapters.errors import ConfigurationError, Unavailable
from postroom.consumers.ledger import (
    Abandoned,
    AlreadyDone,
    Conflict,
    Dead,
    Done,
    Exhausted,
    Failed,
    Finished,
    Lost,
    Released,
    RetryScheduled,
    RunningElsewhere,
    Started,
    check_retention,
)
from postroom.consumers.ledger.tables import ledger
from support.ledgers import begin, claim, finish, open_ledger, pass_time, row, rows, start


def attempt(started):
    return started.id, started.fence


def test_renewal_extends_every_lease_of_this_worker_and_of_no_other(engine, book):
    start(book, claim("one"))
    start(book, claim("two"))
    start(open_ledger(engine, "worker-2"), claim("three"))
    pass_time(engine, 900)
    assert not book.renew()
    pass_time(engine, 900)
    answers = begin(open_ledger(engine, "worker-3"), claim("one"), claim("two"), claim("three"))
    assert [type(answer) for answer in answers] == [RunningElsewhere, RunningElsewhere, Started]


def test_a_renewal_with_nothing_to_renew_asks_the_database_nothing(book):
    assert not book.renew()


def test_a_lease_that_ran_out_and_that_nobody_took_is_renewed(engine, book):
    started = start(book)
    pass_time(engine, 2000)
    assert not book.renew()
    assert isinstance(begin(book, claim())[0], RunningElsewhere)
    assert finish(book, Done(started=started)) == [Finished()]


def test_s113_a_renewal_tells_once_which_attempts_were_lost(engine, book):
    lost, kept = start(book, claim("one")), start(book, claim("two"))
    pass_time(engine, 1001)
    start(open_ledger(engine, "worker-2"), claim("one"))
    assert set(book.renew()) == {attempt(lost)}
    assert not book.renew()
    assert finish(book, Done(started=lost), Done(started=kept)) == [Lost(), Finished()]


def test_an_attempt_that_its_worker_has_lost_sight_of_is_not_kept_alive_by_the_others(engine, book):
    start(book, claim("lost"))
    book._held.clear()  # noqa: SLF001 - however it came to that
    kept = start(book, claim("kept"))
    pass_time(engine, 1001)
    assert not book.renew()
    answers = begin(open_ledger(engine, "worker-2"), claim("lost"), claim("kept"))
    assert [type(answer) for answer in answers] == [Started, RunningElsewhere]
    assert finish(book, Done(started=kept)) == [Finished()]


def test_an_attempt_whose_finish_can_not_be_stored_yet_is_kept_alive(engine, book, monkeypatch):
    started = start(book)

    def away(*_):
        raise Unavailable("for a while")

    with monkeypatch.context() as patch:
        patch.setattr(book, "_work", away)
        with pytest.raises(Unavailable):
            finish(book, Done(started=started))
    pass_time(engine, 900)
    assert not book.renew()
    pass_time(engine, 900)
    assert isinstance(begin(open_ledger(engine, "worker-2"), claim())[0], RunningElsewhere)
    assert finish(book, Done(started=started)) == [Finished()]


def test_what_has_ended_is_not_lost(engine, book):
    ended = [start(book, claim(name)) for name in ("done", "failed", "released", "within")]
    start(book, claim("running"))
    finish(book, Done(started=ended[0]), Failed(started=ended[1], claim=claim("failed"), error="no"), Released(started=ended[2]))
    with engine.begin() as connection:
        book.finish_within(connection, Done(started=ended[3]))
    assert not book.renew()


def test_what_a_round_without_an_answer_had_begun_is_not_kept_alive(engine, book, monkeypatch):
    commit = engine.dialect.do_commit

    def commit_and_be_cut_off(connection):
        commit(connection)
        raise ConnectionResetError

    start(book, claim("known"))
    with monkeypatch.context() as patch:
        patch.setattr(engine.dialect, "do_commit", commit_and_be_cut_off)
        with pytest.raises(ConnectionResetError):
            begin(book, claim("unknown"))
    pass_time(engine, 1001)
    assert not book.renew()
    answers = begin(open_ledger(engine, "worker-2"), claim("known"), claim("unknown"))
    assert [type(answer) for answer in answers] == [RunningElsewhere, Started]


def test_s110_a_job_that_kills_its_process_is_charged_and_its_neighbours_are_not(engine, book):
    killer, waiting_behind, ended = start(book, claim("killer")), start(book, claim("behind")), start(book, claim("ended"))
    other = start(open_ledger(engine, "worker-2"), claim("other"))
    supervisor = open_ledger(engine, "supervisor")
    marks = {attempt(killer): "running", attempt(ended): "ended", (999, 999): "ended"}
    assert supervisor.abandon("worker-1", marks) == Abandoned(released=2, charged=1)
    answers = begin(book, claim("killer"), claim("behind"), claim("ended"))
    assert [(answer.attempt, answer.solo, answer.last_error) for answer in answers] == [(2, True, "worker lost"), (1, False, None), (1, False, None)]
    assert finish(book, Done(started=waiting_behind)) == [Lost()]
    assert finish(open_ledger(engine, "worker-2"), Done(started=other)) == [Finished()]


def test_s109_s110_a_job_that_kills_its_process_each_time_is_exhausted_after_its_last_attempt(engine, book):
    for charged in range(3):
        assert book.abandon("worker-1", {attempt(start(book)): "running"}) == Abandoned(charged=1, failed=int(charged == 2))
    assert begin(book, claim()) == [Exhausted(attempts=3, last_error="worker lost")]
    assert row(engine).finished_at is not None


def test_of_several_suspects_each_runs_alone_next_and_only_the_one_that_did_it_is_charged(engine, book):
    guilty, innocent = start(book, claim("guilty")), start(book, claim("innocent"))
    assert book.abandon("worker-1", {attempt(guilty): "running", attempt(innocent): "running"}) == Abandoned(suspected=2)
    guilty, innocent = start(book, claim("guilty")), start(book, claim("innocent"))
    assert guilty.solo
    assert innocent.solo
    assert (guilty.attempt, innocent.attempt) == (1, 1)
    finish(book, Done(started=innocent))
    assert book.abandon("worker-1", {attempt(guilty): "running"}) == Abandoned(charged=1)
    assert start(book, claim("guilty")).attempt == 3  # it has run twice
    assert [stored.status for stored in rows(engine)] == ["running", "done"]


def test_a_clean_failure_clears_the_suspicion(book):
    one, two = start(book, claim("one")), start(book, claim("two"))
    book.abandon("worker-1", {attempt(one): "running", attempt(two): "running"})
    finish(book, Failed(started=start(book, claim("one")), claim=claim("one"), error="no route"))
    assert not start(book, claim("one")).solo


def test_a_dead_process_is_given_up_only_once(engine, book):
    marks = {attempt(start(book)): "running"}
    assert book.abandon("worker-1", marks) == Abandoned(charged=1)
    assert book.abandon("worker-1", marks) == Abandoned()
    assert (row(engine).status, row(engine).attempts) == ("pending", 1)


def failed(book, key="order-4711"):
    assert finish(book, Failed(started=start(book, claim(key)), claim=claim(key), error="no such order", final=True)) == [
        Dead(attempts=1, last_error="no such order")
    ]


def test_an_operators_retry_gives_a_clean_budget_and_keeps_the_error_as_history(engine, book):
    failed(book)
    assert book.retry(row(engine).id, replays=0)
    assert (row(engine).status, row(engine).attempts, row(engine).replays, row(engine).finished_at) == ("pending", 0, 1, None)
    started = start(book, claim(replays=1))
    assert (started.attempt, started.last_error) == (1, "no such order")


def test_a_retry_made_twice_is_one_retry(engine, book):
    failed(book)
    assert book.retry(row(engine).id, replays=0)
    assert not book.retry(row(engine).id, replays=0)
    assert row(engine).replays == 1
    finish(book, Failed(started=start(book, claim(replays=1)), claim=claim(replays=1), error="still none", final=True))
    assert not book.retry(row(engine).id, replays=0)
    assert (row(engine).status, row(engine).last_error) == ("failed", "still none")


@pytest.mark.parametrize("end", ["running", "done", "pending"])
def test_s108_only_what_has_failed_can_be_retried(engine, book, end):
    started = start(book)
    if end != "running":
        finish(book, Done(started=started) if end == "done" else Released(started=started))
    before = row(engine)
    assert not book.retry(before.id, replays=0)
    assert row(engine) == before


def test_the_message_from_before_a_retry_is_stale_and_the_replayed_one_starts(engine, book):
    failed(book)
    book.retry(row(engine).id, replays=0)
    assert begin(book, claim(), claim(copy=7)) == [RetryScheduled(), RetryScheduled()]
    assert isinstance(begin(book, claim(replays=1))[0], Started)


def test_s127_a_replay_that_the_ledger_was_not_told_of_starts_clean_as_well(engine, book):
    failed(book)
    assert start(book, claim(replays=1)).attempt == 1
    assert row(engine).replays == 1


def test_retention_removes_ended_rows_and_no_others_in_small_batches(engine, book):
    ended = [start(book, claim(f"done-{place}")) for place in range(7)]
    failed(book, "failed")
    start(book, claim("running"))
    finish(book, *(Done(started=started) for started in ended), Released(started=start(book, claim("pending"))))
    pass_time(engine, 5000)
    recent = start(book, claim("recent"))
    finish(book, Done(started=recent))
    assert [book.purge(older_than=4000, limit=5) for _ in range(3)] == [5, 3, 0]
    assert {stored.key for stored in rows(engine)} == {"running", "pending", "recent"}


def test_s095_a_key_is_remembered_for_the_whole_retention_however_often_it_is_asked_for(engine, book):
    finish(book, Done(started=start(book)))
    for _ in range(3):
        pass_time(engine, 60)
        assert book.purge(older_than=200) == 0
        assert begin(book, claim()) == [AlreadyDone()]


def test_s095_a_key_in_progress_never_expires(engine, book):
    start(book)
    pass_time(engine, 1e9)
    assert book.purge(older_than=1) == 0


def test_a_row_made_after_a_purge_does_not_answer_to_an_attempt_from_before_it(engine, book):
    old = start(book)
    finish(book, Done(started=old))
    pass_time(engine, 100)
    assert book.purge(older_than=1) == 1
    new = start(book, claim("order-4712"))
    with engine.begin() as connection:  # the worst case: the database gives the same id again
        connection.execute(update(ledger).values(id=old.id))
    assert finish(book, Failed(started=old, claim=claim(), error="late")) == [Lost()]
    assert row(engine).fence == new.fence


def test_s095_a_retention_shorter_than_the_longest_redelivery_path_is_refused():
    check_retention(600.0, 600.0)
    with pytest.raises(ConfigurationError, match="600 s, but a message may come back after 601 s"):
        check_retention(600.0, 601.0)
    with pytest.raises(ConfigurationError):
        check_retention(float("nan"), 601.0)


def test_s111_a_row_is_taken_over_by_its_lease_alone_whoever_held_it(engine, book):
    start(open_ledger(engine, "gone for good"))
    pass_time(engine, 1001)
    assert start(book).attempt == 2


def test_a_discard_frees_the_key_keeps_the_reason_and_happens_once(engine, book):
    lost = start(book, claim(max_attempts=1))
    finish(book, Failed(started=lost, claim=claim(max_attempts=1), error="no route"))
    assert not book.discard(lost.id, job="job-a", replays=1, note="discarded: of another replay")
    assert book.discard(lost.id, job="job-a", replays=0, note="discarded: a typo\0")
    assert (row(engine).status, row(engine).last_error) == ("failed", "discarded: a typo\N{REPLACEMENT CHARACTER}")
    assert not book.retry(lost.id, replays=0)
    corrected = start(book, claim(job="job-b", body=b"{}"))
    assert (corrected.id, corrected.attempt, corrected.max_attempts) == (lost.id, 1, 3)
    assert not book.discard(lost.id, job="job-a", replays=0, note="discarded: too late")
    assert finish(book, Done(started=corrected)) == [Finished()]
    assert begin(book, claim(job="job-c", body=b"{}")) == [AlreadyDone()]
    assert begin(book, claim(job="job-c")) == [Conflict(ours=claim().digest, theirs=claim(body=b"{}").digest, owner="job-b")]
