"""Group commit: what many lanes want at one moment is one transaction, and no outcome is forgotten."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from postroom.adapters.errors import Unavailable
from postroom.consumers.ledger import Answer, Claim, Done, Failed, Finish, Finished, Lost, Result, Started
from postroom.consumers.worker import committer as module
from postroom.consumers.worker.committer import Committer
from postroom.consumers.worker.failure import failed as failed_with
from postroom.consumers.worker.work import Work
from postroom.outbox.backoff import Backoff
from support.workers import eventually
from support.works import handler_of, work_of


class Ledger:
    """Starts whatever is claimed. `troubles` are raised by the next rounds (None: not this time), `poison` keys can't be stored at all."""

    def __init__(self) -> None:
        self.rounds: list[tuple[list[Finish], list[str]]] = []
        self.ahead: dict[str, bool] = {}
        self.troubles: list[Exception | None] = []
        self.poison: set[str] = set()
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()

    def round(self, finishes: Sequence[Finish], claims: Sequence[Claim]) -> tuple[list[Result], list[Answer]]:
        self.entered.set()
        assert self.open.wait(60)
        if self.troubles and (trouble := self.troubles.pop(0)):
            raise trouble
        rows = [row for finish in finishes if isinstance(finish, Done) for row in finish.outgoing]
        if self.poison & ({claim.envelope.key for claim in claims} | {row["key"] for row in rows}):
            raise ValueError("poison")
        self.rounds.append((list(finishes), [claim.envelope.key for claim in claims]))
        self.ahead |= {claim.envelope.key: claim.ahead for claim in claims}
        return [Finished() for _ in finishes], [started() for _ in claims]


class Pipeline:
    def __init__(self) -> None:
        self.outcomes: list[tuple[Work, Finish, Result]] = []

    def settled(self, outcomes: Sequence[tuple[Work, Finish, Result]]) -> None:
        self.outcomes += outcomes


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OUTAGE", Backoff(first=0.01, cap=0.02))


def started() -> Started:
    return Started(id=1, fence=1, attempt=1, max_attempts=5)


def works(*keys: str) -> list[Work]:
    return [work_of(key, handler_of(), started=started()) for key in keys]


@contextmanager
def committing(ledger: Ledger, pipeline: Pipeline) -> Iterator[Committer]:
    committer = Committer(ledger, pipeline)  # type: ignore[arg-type]
    thread = threading.Thread(target=committer.run, daemon=True)
    thread.start()
    yield committer
    committer.close()
    thread.join(60)
    assert not thread.is_alive()


def test_what_all_lanes_want_at_one_moment_is_one_round() -> None:
    ledger, answers = Ledger(), {}
    with committing(ledger, Pipeline()) as committer:
        ledger.open.clear()
        blocked = threading.Thread(target=committer.begin, args=(works("first"),))
        blocked.start()
        assert ledger.entered.wait(60)
        [done] = works("done")
        committer.hand_in(done, Done(started=done.attempt))
        lanes = [threading.Thread(target=lambda key=key: answers.update({key: committer.begin(works(key, f"{key}2"))})) for key in "abc"]
        for lane in lanes:
            lane.start()
        eventually(lambda: committer.waiting == 3)
        ledger.open.set()
        for lane in (*lanes, blocked):
            lane.join(60)
    assert [sorted(keys) for _, keys in ledger.rounds] == [["first"], ["a", "a2", "b", "b2", "c", "c2"]]
    assert [len(finishes) for finishes, _ in ledger.rounds] == [0, 1]
    assert all(len(given) == 2 for given in answers.values())
    assert {key for key, ahead in ledger.ahead.items() if ahead} == {"a2", "b2", "c2"}


def test_a_finish_that_nobody_rides_with_is_stored_soon() -> None:
    ledger, pipeline = Ledger(), Pipeline()
    [work] = works("a")
    with committing(ledger, pipeline) as committer:
        committer.hand_in(work, Done(started=work.attempt))
        eventually(lambda: pipeline.outcomes)
    assert pipeline.outcomes == [(work, Done(started=work.attempt), Finished())]


def test_what_one_half_of_a_divided_round_has_begun_stands_though_the_other_meets_an_outage() -> None:
    ledger = Ledger()
    ledger.troubles = [ValueError("poison"), None, Unavailable("the database is away")]
    with committing(ledger, Pipeline()) as committer:
        assert committer.begin(works("a", "b")) == [started(), started()]
    assert [keys for _, keys in ledger.rounds] == [["a"], ["b"]]


def test_s120_an_outcome_that_can_not_be_stored_yet_is_stored_later_and_settled_only_then() -> None:
    ledger, pipeline = Ledger(), Pipeline()
    ledger.troubles = [Unavailable("the database is away")] * 1000
    [done, failed] = works("done", "failed")
    with committing(ledger, pipeline) as committer:
        committer.hand_in(done, Done(started=done.attempt))
        committer.hand_in(failed, failed_with(failed, "no"))
        committer.wake()
        eventually(lambda: len(ledger.troubles) < 998)
        assert pipeline.outcomes == []
        del ledger.troubles[1:]
        eventually(lambda: pipeline.outcomes)
    assert [(work, result) for work, _, result in pipeline.outcomes] == [(done, Finished()), (failed, Finished())]


def test_s120_when_nobody_waits_for_the_database_any_more_nothing_is_acked_and_lanes_are_told() -> None:
    ledger, pipeline, answers = Ledger(), Pipeline(), []
    ledger.troubles = [Unavailable("the database is away")] * 1000
    [work] = works("a")
    with committing(ledger, pipeline) as committer:
        committer.hand_in(work, Done(started=work.attempt))
        lane = threading.Thread(target=lambda: answers.append(committer.begin(works("b"))))
        lane.start()
        committer.give_up()
        lane.join(60)
    assert answers == [[None]]
    assert [result for _, _, result in pipeline.outcomes] == [Lost()]


def test_one_claim_that_the_ledger_can_not_take_does_not_spoil_the_round_of_the_others() -> None:
    ledger = Ledger()
    ledger.poison = {"c"}
    with committing(ledger, Pipeline()) as committer:
        answers = committer.begin(works("a", "b", "c", "d", "e"))
    assert [answer is None for answer in answers] == [False, False, True, False, False]


def test_a_job_whose_outgoing_jobs_can_not_be_stored_has_failed() -> None:
    ledger, pipeline = Ledger(), Pipeline()
    ledger.poison = {"bad"}
    good, bad = works("good", "bad one")
    with committing(ledger, pipeline) as committer:
        committer.hand_in(good, Done(started=good.attempt, outgoing=[{"key": "fine"}]))
        committer.hand_in(bad, Done(started=bad.attempt, outgoing=[{"key": "bad"}]))
        committer.wake()
        eventually(lambda: len(pipeline.outcomes) == 2)
    finishes = {work: finish for work, finish, _ in pipeline.outcomes}
    assert isinstance(finishes[good], Done)
    assert isinstance(finishes[bad], Failed)
    assert finishes[bad].error == "ValueError: poison"
