"""The ledger's decisions as a table: no database, no clock."""

from dataclasses import replace

import pytest

from postroom.consumers.ledger import (
    Abandoned,
    AlreadyDone,
    Conflict,
    Dead,
    Done,
    Exhausted,
    Failed,
    Finished,
    Later,
    Lost,
    Released,
    RetryScheduled,
    RunningElsewhere,
    Started,
    Waiting,
)
from postroom.consumers.ledger.decide import (
    LEAST_WAIT,
    MOST_WAIT,
    Verdict,
    abandon,
    begin,
    begin_in_turn,
    holds_up,
    is_held_up,
    may_begin_unseen,
    settle,
    tally,
)
from postroom.consumers.ledger.entry import CRASHES, FREE, Entry, Holder, replayed
from support.ledgers import claim

NOW = 100.0
HOLDER = Holder(worker="worker-2", fence=22, lease=30.0, doubtful=frozenset({66}))
CLAIM = claim(copy=1, replays=1)

PENDING = Entry(
    id=7,
    group_name="default",
    type="send-receipt",
    key="order-4711",
    job_id="job-a",
    queue="emails",
    digest=CLAIM.digest,
    status="pending",
    attempts=1,
    max_attempts=3,
    suspicions=0,
    fence=11,
    copy=1,
    replays=1,
    enqueued_at=1.0,
    last_error="no route",
)
DUE_LATER = replace(PENDING, retry_at=NOW + 5)
RUNNING = replace(PENDING, status="running", taken_at=90.0, lease_until=NOW + 20, worker="worker-1")
EXPIRED = replace(RUNNING, lease_until=NOW - 0.001)
DONE = replace(PENDING, status="done", finished_at=50.0)
FAILED = replace(PENDING, status="failed", attempts=3, finished_at=50.0)

OTHER_PAYLOAD = claim(copy=1, replays=1, body=b"{}")
OTHER_JOB = claim(job="job-b", copy=0, replays=0)
OLDER_COPY = claim(copy=0, replays=1)
OLDER_REPLAY = claim(copy=9, replays=0)
NEWER_COPY = claim(copy=2, replays=1)
NEWER_REPLAY = claim(copy=0, replays=2)
ALL = [CLAIM, OTHER_JOB, OLDER_COPY, OLDER_REPLAY, NEWER_COPY, NEWER_REPLAY]
FRESH = [CLAIM, OTHER_JOB, NEWER_COPY, NEWER_REPLAY]
STALE = [OLDER_COPY, OLDER_REPLAY]

CONFLICT = Conflict(ours=OTHER_PAYLOAD.digest, theirs=CLAIM.digest, owner="job-a")
DISCARDED = replace(FAILED, digest=FREE, last_error="discarded: a typo")
STARTED = Started(id=7, fence=22, attempt=2, max_attempts=3, last_error="no route")


@pytest.mark.parametrize("entry", [PENDING, DUE_LATER, RUNNING, EXPIRED, DONE, FAILED], ids=lambda entry: entry.status)
def test_another_payload_under_the_same_key_is_a_conflict_and_touches_nothing(entry):
    verdict = begin(entry, OTHER_PAYLOAD, HOLDER, NOW)
    assert (verdict.answer, verdict.entry) == (CONFLICT, None)


@pytest.mark.parametrize("asked", ALL)
def test_s104_any_message_of_a_done_key_is_already_done_and_touches_nothing(asked):
    verdict = begin(DONE, asked, HOLDER, NOW)
    assert (verdict.answer, verdict.entry) == (AlreadyDone(), None)


@pytest.mark.parametrize("entry", [PENDING, DUE_LATER, RUNNING, EXPIRED, FAILED])
@pytest.mark.parametrize("asked", STALE)
def test_s119_an_older_copy_or_replay_of_the_same_job_is_stale(entry, asked):
    verdict = begin(entry, asked, HOLDER, NOW)
    assert (verdict.answer, verdict.entry) == (RetryScheduled(), None)


@pytest.mark.parametrize("asked", FRESH)
@pytest.mark.parametrize(
    ("age", "left", "retry_in"),
    [(0.0, 30.0, LEAST_WAIT), (5.0, 30.0, 5.0), (500.0, 20.0, 20.0), (500.0, 0.0, LEAST_WAIT), (7200.0, 3600.0, MOST_WAIT)],
)
def test_s093_a_message_that_meets_a_live_attempt_looks_again_after_as_long_as_that_has_run_or_when_its_lease_ends(asked, age, left, retry_in):
    verdict = begin(replace(RUNNING, taken_at=NOW - age, lease_until=NOW + left), asked, HOLDER, NOW)
    assert (verdict.answer, verdict.entry) == (RunningElsewhere(retry_in=retry_in), None)


def test_the_same_worker_does_not_get_its_own_live_attempt_a_second_time():
    mine = replace(RUNNING, worker=HOLDER.worker)
    assert isinstance(begin(mine, CLAIM, HOLDER, NOW).answer, RunningElsewhere)


@pytest.mark.parametrize("asked", FRESH)
def test_s105_an_expired_attempt_is_charged_and_taken_over(asked):
    verdict = begin(EXPIRED, asked, HOLDER, NOW)
    assert verdict.answer == Started(id=7, fence=22, attempt=3, max_attempts=3, solo=True, last_error="lease expired")
    assert verdict.entry == replace(
        EXPIRED,
        job_id=asked.envelope.id,
        copy=asked.envelope.copy,
        replays=asked.envelope.replays,
        attempts=2,
        last_error="lease expired",
        fence=22,
        taken_at=NOW,
        lease_until=NOW + 30,
        worker="worker-2",
    )


@pytest.mark.parametrize("ahead", [False, True])
def test_s109_an_expired_last_attempt_is_exhausted_without_being_run(ahead):
    verdict = begin(replace(EXPIRED, attempts=2), replace(CLAIM, ahead=ahead), HOLDER, NOW)
    assert verdict.answer == Exhausted(attempts=3, last_error="lease expired")
    assert verdict.entry is not None
    assert (verdict.entry.status, verdict.entry.attempts, verdict.entry.finished_at, verdict.entry.worker) == ("failed", 3, NOW, None)


def test_an_expired_attempt_proves_earlier_suspicions():
    verdict = begin(replace(EXPIRED, attempts=0, suspicions=1), CLAIM, HOLDER, NOW)
    assert verdict.answer == Started(id=7, fence=22, attempt=3, max_attempts=3, solo=True, last_error="lease expired")


@pytest.mark.parametrize("asked", FRESH)
@pytest.mark.parametrize("entry", [PENDING, replace(PENDING, retry_at=NOW)])
def test_a_pending_key_that_is_due_is_started(entry, asked):
    verdict = begin(entry, asked, HOLDER, NOW)
    assert verdict.answer == STARTED
    assert verdict.entry is not None
    assert (verdict.entry.status, verdict.entry.attempts, verdict.entry.job_id) == ("running", 1, asked.envelope.id)


@pytest.mark.parametrize("asked", FRESH)
def test_a_key_whose_next_attempt_is_due_later_waits_for_whoever_asks(asked):
    verdict = begin(DUE_LATER, asked, HOLDER, NOW)
    assert (verdict.answer, verdict.entry) == (Waiting(retry_in=5.0), None)


@pytest.mark.parametrize("asked", [CLAIM, OTHER_JOB, NEWER_COPY])
def test_a_failed_key_is_exhausted_for_every_message_but_a_newer_replay(asked):
    verdict = begin(FAILED, asked, HOLDER, NOW)
    assert (verdict.answer, verdict.entry) == (Exhausted(attempts=3, last_error="no route"), None)


def test_s127_a_newer_replay_of_a_failed_key_starts_with_a_clean_budget():
    verdict = begin(FAILED, NEWER_REPLAY, HOLDER, NOW)
    assert verdict.answer == Started(id=7, fence=22, attempt=1, max_attempts=3, last_error="no route")
    assert verdict.entry is not None
    assert (verdict.entry.attempts, verdict.entry.replays, verdict.entry.copy) == (0, 2, 0)


def test_after_an_operators_retry_the_replayed_message_starts_and_the_one_before_is_stale():
    revived = replayed(FAILED, 2)
    assert begin(revived, NEWER_REPLAY, HOLDER, NOW).answer == replace(STARTED, attempt=1)
    assert begin(revived, CLAIM, HOLDER, NOW).answer == RetryScheduled()


OTHER_JOB_AND_PAYLOAD = claim(job="job-b", body=b"{}")


@pytest.mark.parametrize("asked", [OTHER_JOB, OTHER_JOB_AND_PAYLOAD, NEWER_REPLAY])
def test_a_discarded_job_frees_its_key_for_another_job_whatever_its_payload(asked):
    verdict = begin(DISCARDED, asked, HOLDER, NOW)
    assert verdict.answer == Started(id=7, fence=22, attempt=1, max_attempts=3)
    assert verdict.entry is not None
    assert (verdict.entry.digest, verdict.entry.job_id) == (asked.digest, asked.envelope.id)
    assert (verdict.entry.attempts, verdict.entry.last_error, verdict.entry.replays) == (0, None, asked.envelope.replays)


@pytest.mark.parametrize("asked", [CLAIM, NEWER_COPY, *STALE])
def test_a_twin_of_a_discarded_message_is_not_run(asked):
    verdict = begin(DISCARDED, asked, HOLDER, NOW)
    assert (verdict.answer, verdict.entry) == (RetryScheduled(), None)


def test_a_limit_that_was_lowered_below_what_is_used_ends_the_key_as_failed():
    verdict = begin(PENDING, claim(copy=1, replays=1, max_attempts=1), HOLDER, NOW)
    assert verdict.answer == Exhausted(attempts=1, last_error="no route")
    assert verdict.entry is not None
    assert verdict.entry.status == "failed"


def test_a_limit_that_was_raised_holds_from_the_next_attempt():
    verdict = begin(replace(PENDING, attempts=2), claim(copy=1, replays=1, max_attempts=9), HOLDER, NOW)
    assert verdict.answer == replace(STARTED, attempt=3, max_attempts=9)


SOLO = [replace(PENDING, last_error=error) for error in sorted(CRASHES)] + [replace(PENDING, attempts=0, suspicions=1)]


@pytest.mark.parametrize("entry", SOLO)
def test_a_job_with_a_crash_in_its_history_runs_alone(entry):
    answer = begin(entry, CLAIM, HOLDER, NOW).answer
    assert isinstance(answer, Started)
    assert answer.solo


@pytest.mark.parametrize("entry", [*SOLO, EXPIRED, replace(PENDING, attempts=2), replace(FAILED, max_attempts=1)])
def test_what_must_be_begun_first_is_not_begun_ahead_and_nothing_changes(entry):
    asked = replace(NEWER_REPLAY if entry.status == "failed" else CLAIM, ahead=True, max_attempts=1 if entry.status == "failed" else 3)
    verdict = begin(entry, asked, HOLDER, NOW)
    assert (verdict.answer, verdict.entry) == (Later(), None)


def test_any_other_attempt_may_be_begun_ahead():
    assert begin(PENDING, replace(CLAIM, ahead=True), HOLDER, NOW).answer == STARTED


@pytest.mark.parametrize(("ahead", "max_attempts", "may"), [(False, 1, True), (True, 1, False), (True, 2, True)])
def test_an_only_attempt_is_never_begun_ahead(ahead, max_attempts, may):
    assert may_begin_unseen(claim(ahead=ahead, max_attempts=max_attempts)) is may


def test_what_a_round_without_an_answer_has_begun_is_begun_again_uncharged():
    verdict = begin(replace(RUNNING, fence=66), CLAIM, HOLDER, NOW)
    assert verdict.answer == STARTED


ATTEMPT = Started(id=7, fence=11, attempt=2, max_attempts=3)
FINISHES = [Done(started=ATTEMPT), Failed(started=ATTEMPT, claim=CLAIM, error="late"), Released(started=ATTEMPT)]


def test_done_ends_the_attempt():
    result, entry = settle(RUNNING, Done(started=ATTEMPT), NOW, native_delay=True)
    assert (result, entry) == (Finished(), replace(DONE, finished_at=NOW))


@pytest.mark.parametrize(("native_delay", "copy"), [(True, 1), (False, 2)])
def test_a_failure_with_attempts_left_is_charged_and_due_later_and_names_the_copy_that_lives(native_delay, copy):
    suspect = replace(RUNNING, attempts=0, suspicions=1)
    finish = Failed(started=replace(ATTEMPT, attempt=1), claim=CLAIM, error="refused", delay=8.0)
    result, entry = settle(suspect, finish, NOW, native_delay=native_delay)
    assert result == Finished()
    assert entry == replace(PENDING, attempts=1, suspicions=0, last_error="refused", retry_at=NOW + 8, copy=copy)


@pytest.mark.parametrize(("attempts", "final"), [(2, False), (2, True), (0, True)])
def test_the_last_failure_and_a_final_one_leave_the_key_failed_with_its_error(attempts, final):
    finish = Failed(started=replace(ATTEMPT, attempt=attempts + 1), claim=CLAIM, error="refused", delay=8.0, final=final)
    result, entry = settle(replace(RUNNING, attempts=attempts), finish, NOW, native_delay=False)
    assert result == Dead(attempts=attempts + 1, last_error="refused")
    assert entry == replace(FAILED, attempts=attempts + 1, last_error="refused", finished_at=NOW)


def test_a_release_is_not_charged():
    result, entry = settle(RUNNING, Released(started=ATTEMPT), NOW, native_delay=True)
    assert (result, entry) == (Finished(), PENDING)


def test_a_finish_after_an_expiry_that_nobody_noticed_is_stored():
    assert settle(EXPIRED, Done(started=ATTEMPT), NOW, native_delay=True)[0] == Finished()


@pytest.mark.parametrize("finish", FINISHES)
@pytest.mark.parametrize("entry", [None, replace(RUNNING, fence=12), replace(DONE, fence=12), replace(FAILED, fence=12), replace(PENDING, fence=12)])
def test_s108_an_attempt_that_is_not_the_last_one_changes_nothing(entry, finish):
    assert settle(entry, finish, NOW, native_delay=True) == (Lost(), None)


def test_s108_a_late_failure_of_an_attempt_that_was_given_up_changes_nothing():
    given_up = abandon(RUNNING, None, NOW, running=0)
    assert settle(given_up, Failed(started=ATTEMPT, claim=CLAIM, error="late"), NOW, native_delay=True) == (Lost(), None)
    assert settle(given_up, Done(started=ATTEMPT), NOW, native_delay=True) == (Lost(), None)


@pytest.mark.parametrize("finish", [*FINISHES, Failed(started=ATTEMPT, claim=CLAIM, error="no\0 route", final=True)])
def test_s120_a_finish_that_is_stored_already_has_the_same_result_again(finish):
    result, entry = settle(RUNNING, finish, NOW, native_delay=False)
    assert entry is not None
    assert settle(entry, finish, NOW + 1, native_delay=False) == (result, None)


def test_a_started_job_of_a_dead_process_that_ran_alone_is_charged():
    entry = abandon(RUNNING, "running", NOW, running=1)
    assert entry == replace(PENDING, attempts=2, last_error="worker lost")


def test_s110_a_job_that_kills_its_process_each_time_ends_failed_at_the_cap():
    entry = abandon(replace(RUNNING, attempts=2), "running", NOW, running=1)
    assert (entry.status, entry.attempts, entry.last_error) == ("failed", 3, "worker lost")


def test_what_was_begun_and_not_run_is_given_back_uncharged():
    assert abandon(RUNNING, None, NOW, running=3) == PENDING


def test_one_of_several_that_ran_is_suspected_and_not_charged():
    entry = abandon(replace(RUNNING, attempts=0), "running", NOW, running=2)
    assert entry == replace(PENDING, attempts=0, suspicions=1)


def test_a_suspicion_is_charged_when_it_is_proven():
    entry = abandon(replace(RUNNING, attempts=0, suspicions=1), "running", NOW, running=1)
    assert entry == replace(PENDING, attempts=2, last_error="worker lost")


@pytest.mark.parametrize(("attempts", "suspicions"), [(2, 0), (1, 1), (0, 2)])
@pytest.mark.parametrize("mark", ["running", "ended"])
def test_what_ran_on_its_last_attempt_is_charged_even_as_one_of_several(attempts, suspicions, mark):
    entry = abandon(replace(RUNNING, attempts=attempts, suspicions=suspicions), mark, NOW, running=5)
    assert (entry.status, entry.attempts, entry.suspicions) == ("failed", 3, 0)


def test_a_job_that_had_ended_with_its_finish_lost_is_given_back_uncharged():
    assert abandon(RUNNING, "ended", NOW, running=1) == PENDING


@pytest.mark.parametrize(("attempts", "suspicions"), [(1, 0), (2, 0), (0, 2)])
@pytest.mark.parametrize("running", [0, 1, 5])
def test_a_job_whose_handler_had_returned_is_done_also_on_its_last_attempt(attempts, suspicions, running):
    entry = abandon(replace(RUNNING, attempts=attempts, suspicions=suspicions), "returned", NOW, running=running)
    assert entry == replace(DONE, attempts=attempts, suspicions=suspicions, finished_at=NOW)


def test_what_became_of_a_dead_process_is_counted():
    before = [RUNNING, replace(RUNNING, attempts=2), replace(RUNNING, attempts=0), RUNNING, RUNNING]
    marks = [None, "running", "running", "ended", "returned"]
    changes = [(entry, abandon(entry, mark, NOW, running=2)) for entry, mark in zip(before, marks, strict=True)]
    counts = tally(changes)
    assert counts == Abandoned(done=1, released=2, suspected=1, charged=1, failed=1)
    assert str(counts) == "1 done, 2 given back, 1 suspected, 1 charged, 1 given up"
    assert str(Abandoned()) == ""


@pytest.mark.parametrize("asked", [*ALL, OTHER_PAYLOAD])
@pytest.mark.parametrize("entry", [None, PENDING, DUE_LATER, RUNNING, EXPIRED, DONE, FAILED, DISCARDED])
def test_a_claim_that_is_held_up_waits_and_touches_nothing_unless_it_is_done_or_stale(entry, asked):
    free = begin_in_turn(entry, asked, HOLDER, NOW, held_up=False)
    assert free == (entry and begin(entry, asked, HOLDER, NOW))
    needs_no_turn = free is not None and isinstance(free.answer, AlreadyDone | RetryScheduled)
    assert begin_in_turn(entry, asked, HOLDER, NOW, held_up=True) == (free if needs_no_turn else Verdict(Waiting(retry_in=0.0)))


@pytest.mark.parametrize(("first", "held_up"), [(None, False), ("job-a", False), ("job-b", True)])
def test_only_the_first_job_that_holds_up_an_ordering_key_does_not_wait(first, held_up):
    assert is_held_up(CLAIM, first) is held_up


def test_what_was_delivered_and_could_not_end_holds_up_what_is_behind_it():
    waits = [RunningElsewhere(retry_in=1.0), Waiting(retry_in=1.0), Exhausted(attempts=3, last_error="no"), CONFLICT]
    assert all(map(holds_up, waits))
    assert not any(map(holds_up, [STARTED, AlreadyDone(), RetryScheduled(), Later()]))
