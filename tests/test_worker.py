"""One worker in this process: what becomes of a job, on a queue that can hold jobs back and on a broker that can't."""

from __future__ import annotations

from typing import Any

from postroom.adapters.connect import connect
from postroom.consumers import Backoff, Context, Fail, Retry
from support.inprocess import SOON, Office, effect, office


def test_two_different_jobs_about_order_4711_send_one_email(here: Office) -> None:
    sent: list[str] = []

    @here.jobs.handler("send", queue="q")
    def send(payload: dict[str, Any], context: Context) -> None:
        sent.append(context.job.key)

    here.enqueue("send", "order-4711")
    here.drain()
    here.enqueue("send", "order-4711")
    assert here.drain().counts == {"duplicates": 1}
    assert sent == ["order-4711"]


def test_a_handler_can_give_up_or_choose_the_time_of_the_next_attempt(here: Office) -> None:
    attempts: list[tuple[str, int]] = []

    @here.jobs.handler("t", queue="q", backoff=Backoff(first=3600, cap=3600))
    def handle(payload: Any, context: Context) -> None:
        attempts.append((context.job.key, context.job.attempt))
        if context.job.key == "hopeless":
            raise Fail("the address does not exist")
        if context.job.attempt == 1:
            raise Retry("the server is busy", after=0.05)

    hopeless = here.enqueue("t", "hopeless")
    here.enqueue("t", "busy")
    here.drain()
    assert sorted(attempts) == [("busy", 1), ("busy", 2), ("hopeless", 1)]
    assert here.letters()[hopeless].reason == "given up after 1 attempt: the address does not exist"


def test_a_job_of_a_type_that_nobody_handles_is_a_dead_letter(here: Office) -> None:
    @here.jobs.handler("t", queue="q")
    def handle(payload: Any) -> None: ...

    job = here.enqueue("other", "k")
    assert here.drain().failed == 1
    assert here.letters()[job].reason == "given up after 1 attempt: no handler for type 'other' here; its queue is 'q'"


def test_the_same_key_with_another_payload_is_a_conflict_that_names_both(here: Office) -> None:
    @here.jobs.handler("t", queue="q")
    def handle(payload: Any) -> None: ...

    here.enqueue("t", "k", {"amount": 1})
    here.drain()
    before = here.entry("k")
    assert before.job_id
    job = here.enqueue("t", "k", {"amount": 2})
    here.drain()
    reason = here.letters()[job].reason
    assert "conflict" in reason
    assert before.digest in reason
    assert before.job_id in reason
    assert here.entry("k") == before


def test_s137_an_error_with_a_nul_in_its_text_is_stored_and_dead_lettered(here: Office) -> None:
    @here.jobs.handler("t", queue="q", max_attempts=1)
    def handle(payload: Any) -> None:
        raise ValueError("a\x00b")

    job = here.enqueue("t", "k")
    here.drain()
    assert here.entry("k").status == "failed"
    assert "a\N{REPLACEMENT CHARACTER}b" in here.letters()[job].reason


def test_the_whole_way_on_each_database(database_url: str) -> None:
    with office(database_url, connect(database_url)) as here:

        @here.jobs.handler("parent", queue="q", max_attempts=2, backoff=SOON)
        def parent(payload: dict[str, int], context: Context) -> None:
            context.session.execute(effect(context.job.key))
            context.enqueue("child", {}, key=f"child-{payload['n']}")
            if payload["n"] == 0 or (payload["n"] == 1 and context.job.attempt == 1):
                raise ValueError("after the effect")

        @here.jobs.handler("child", queue="q")
        def child(payload: Any, context: Context) -> None: ...

        for number in range(20):
            here.enqueue("parent", f"parent-{number}", {"n": number})
        report = here.drain()
        assert report.counts == {"done": 38, "failed": 2, "dead": 1}
        assert sorted(here.effects()) == sorted(f"parent-{number}" for number in range(1, 20))
        assert {entry.status for entry in here.entries() if entry.key != "parent-0"} == {"done"}
        assert len(here.letters()) == report.failed == 1
