"""Messages from other producers: a mapper makes jobs of them, and what it can't map is a dead letter, untouched."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.adapters.errors import ConfigurationError
from postroom.adapters.memory import Memory
from postroom.adapters.seam import Message, Queue
from postroom.consumers import Context, Jobs, MappedJob
from postroom.consumers.dead import Selection, as_seen, discarded, letters, places
from postroom.consumers.mapping import job_id
from postroom.consumers.replay import Fate
from postroom.consumers.status import status_of
from postroom.outbox import Outbox
from postroom.outbox.envelope import MAPPED, ORIGIN, VERSION, read_envelope
from support.foreign import Order, dead, draining_often, handled, order, replay, send
from support.inprocess import SOON, Office, office


@pytest.fixture
def here(here: Office) -> Iterator[Office]:
    with draining_often():
        yield here


def in_line(message: Message) -> MappedJob:
    """Orders one after the other, whatever their messages say."""
    number = json.loads(message.body)["order"]
    return MappedJob(type="order", key=f"order-{number}", payload={"order_id": number}, ordering_key="customer-7")


def test_a_message_of_another_program_becomes_a_job_with_type_key_payload_and_headers(here: Office) -> None:
    seen = handled(here)
    send(here, {"order": 4711, "at": "12:00"}, ordering_key="customer-7")
    assert here.drain().counts == {"done": 1}
    [(payload, job)] = seen
    assert payload == Order(4711)
    assert (job.id, job.type, job.key, job.attempt, job.headers) == ("theirs-1", "order", "order-4711", 1, {"producer": "shop", "raw": b"\xff"})
    [status] = status_of(here.engine, "order-4711")
    assert (status.id, status.type, status.status) == ("theirs-1", "order", "done")


def test_one_queue_carries_both_kinds_of_messages(here: Office) -> None:
    seen = handled(here)
    send(here, {"order": 1})
    here.enqueue("order", "order-2", {"order_id": 2}, headers={"trace": "abc"})
    assert here.drain().counts == {"done": 2}
    assert sorted((job.key, payload.order_id, "trace" in job.headers) for payload, job in seen) == [("order-1", 1, False), ("order-2", 2, True)]


def test_a_mapper_may_choose_headers_and_ordering_key_and_a_typed_payload(here: Office) -> None:
    seen = handled(here, lambda _: MappedJob(type="order", key="k", payload=Order(3), headers={"mine": 1}, ordering_key="customer-1"))
    send(here, b"\x00 no JSON")
    here.drain()
    assert [(payload, dict(job.headers)) for payload, job in seen] == [(Order(3), {"mine": 1})]


def test_what_is_no_job_is_acked_counted_and_logged(here: Office, caplog: pytest.LogCaptureFixture) -> None:
    seen = handled(here)
    send(here, {"heartbeat": True})
    with caplog.at_level(logging.INFO, "postroom.worker"):
        assert here.drain().counts == {"passed": 1}
    assert "passed over in q: message theirs-1 is no job, says its mapper" in caplog.messages
    assert (seen, dead(here), here.adapter.depth("q")["pending"]) == ([], [], 0)


def leave(_: Message) -> MappedJob:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("mapper", "told"),
    [
        (lambda message: json.loads(message.body)["nothing"], "KeyError: 'nothing'"),
        (leave, "SystemExit: 3"),
        (lambda _: "order-1", "it returned str: a mapper returns a MappedJob, or None for what is no job"),
        (lambda _: MappedJob(type="two words", key="k", payload={}), "type: 'two words' is no job type"),
        (lambda _: MappedJob(type="order", key="k" * 401, payload={}), "has 401 bytes, and a key has 1 to 400"),
        (lambda _: MappedJob(type="order", key=4711, payload={}), "key: 4711 is int, and a key is text"),  # type: ignore[arg-type]
        (lambda _: MappedJob(type="order", key="k", payload=float("nan")), "payload: NaN is not JSON"),
        (lambda _: MappedJob(type="order", key="k", payload={1: 2}), "payload: "),
        (lambda _: MappedJob(type="order", key="k", payload={}, ordering_key=""), "ordering_key: '' has 0 bytes"),
        (lambda _: MappedJob(type="order", key="k", payload={}, headers="x"), "headers: they are str"),  # type: ignore[arg-type]
    ],
)
def test_s122_what_can_not_be_mapped_is_a_dead_letter_untouched_and_its_reason_names_the_mapper(
    here: Office, mapper: Callable[[Message], Any], told: str
) -> None:
    handled(here, mapper)
    send(here, {"order": 4711})
    assert here.drain().counts == {"dead": 1}
    [letter] = dead(here)
    assert (letter.message.body, dict(letter.message.headers), letter.envelope) == (b'{"order": 4711}', {"producer": "shop", "raw": b"\xff"}, None)
    assert letter.error.startswith(f"mapper {mapper.__qualname__} of queue 'q': ")
    assert told in letter.error
    assert here.entries() == []


def test_s043_an_empty_body_is_the_mappers_business(here: Office) -> None:
    seen = handled(here, lambda message: None if not message.body else order(message))
    send(here, b"")
    send(here, {"order": 1}, id_="theirs-2")
    assert here.drain().counts == {"passed": 1, "done": 1}
    assert [payload for payload, _ in seen] == [Order(1)]


def test_s122_without_a_mapper_a_foreign_message_is_a_dead_letter_as_before(here: Office) -> None:
    here.jobs.handler("order", queue="q")(lambda _: None)
    send(here, {"order": 1})
    assert here.drain().counts == {"dead": 1}
    assert "no postroom-version header" in dead(here)[0].error


def test_a_half_formed_envelope_is_not_the_mappers(here: Office) -> None:
    handled(here)
    here.publish_raw(b'{"order": 1}', **{VERSION: 99})
    assert here.drain().counts == {"dead": 1}
    assert "postroom-version is 99" in dead(here)[0].error


def test_a_type_without_a_handler_is_a_dead_letter(here: Office) -> None:
    handled(here, lambda _: MappedJob(type="other", key="k", payload={}))
    send(here, {})
    assert here.drain().counts == {"dead": 1}
    assert dead(here)[0].error == "given up after 1 attempt: no handler for type 'other' here; its queue is 'q'"


def test_the_producers_own_repeat_is_a_duplicate_though_its_bytes_differ(here: Office) -> None:
    seen = handled(here)
    send(here, {"order": 4711, "at": "12:00"})
    here.drain()
    send(here, {"order": 4711, "at": "12:05"}, id_="theirs-2")
    assert here.drain().counts == {"duplicates": 1}
    assert len(seen) == 1


def test_another_payload_under_the_same_key_is_a_conflict(here: Office) -> None:
    handled(here, lambda message: MappedJob(type="order", key="k", payload={"order_id": json.loads(message.body)}))
    send(here, 1)
    here.drain()
    send(here, 2, id_="theirs-2")
    assert here.drain().counts == {"dead": 1}
    assert "'k'" in dead(here)[0].error


@pytest.mark.parametrize("name", ["m" * 36, "m" * 37, "", "tab\t", "größe", "\ud800"])
def test_a_jobs_id_is_that_of_its_message_or_a_fingerprint_of_it_and_fits_every_database(name: str) -> None:
    made = job_id(name)
    assert made == job_id(name)
    assert 0 < len(made.encode()) <= 36
    assert (made == name) is (name in {"m" * 36, "größe"})


def test_a_foreign_queue_gets_nothing_back_retries_and_letters_have_queues_of_their_own(here: Office) -> None:
    theirs = Queue(name="q", foreign=True)
    here.jobs.mapper(queue="q")(order)
    seen: list[tuple[str, int]] = []

    @here.jobs.handler("order", queue=theirs, backoff=SOON, max_attempts=2)
    def handle(_: Order, context: Context) -> None:
        seen.append((context.job.queue, context.job.attempt))
        raise RuntimeError("no")

    send(here, {"order": 1})
    here.drain()
    assert theirs.carriers == {"q": 1, "q.retry": 1}
    last = "q" if here.adapter.capabilities.native_delay else "q.retry"
    assert seen == [("q", 1), (last, 2)]
    [letter] = dead(here, last)
    assert letter.error.startswith("given up after 2 attempts")


def test_an_ordered_foreign_queue_keeps_the_order_of_a_key_over_retries_in_the_queue_beside_it(tmp_path: Path) -> None:
    with office(f"sqlite:///{tmp_path}/postroom.db", Memory(native_delay=False)) as here:
        theirs = Queue(name="q", foreign=True, ordered=True)
        here.jobs.mapper(queue="q")(order)
        seen: list[str] = []

        @here.jobs.handler("order", queue=theirs, backoff=SOON, max_attempts=3)
        def handle(_: Order, context: Context) -> None:
            seen.append(context.job.key)
            if context.job.key == "order-1" and context.job.attempt < 3:
                raise RuntimeError("not yet")

        for number in (1, 2, 3):
            send(here, {"order": number}, id_=f"theirs-{number}", ordering_key="customer-7")
        here.drain()
        assert seen == ["order-1", "order-1", "order-1", "order-2", "order-3"]


@pytest.mark.parametrize("way", ["discarded", "replayed"])
def test_a_dead_letter_of_an_ordered_foreign_queue_holds_its_mappers_ordering_key_until_a_person_has_decided(tmp_path: Path, way: str) -> None:
    with office(f"sqlite:///{tmp_path}/postroom.db", Memory(native_delay=False)) as here:
        here.jobs.mapper(queue="q")(in_line)
        seen: list[str] = []

        @here.jobs.handler("order", queue=Queue(name="q", foreign=True, ordered=True), max_attempts=1)
        def handle(_: Order, context: Context) -> None:
            seen.append(context.job.key)
            if seen == ["order-1"]:
                raise RuntimeError("no such address")

        for number in (1, 2):
            send(here, {"order": number}, id_=f"theirs-{number}")
            here.drain(concurrency=1)
        assert seen == ["order-1"]
        if way == "replayed":
            assert replay(here) == {Fate.REPLAYED: 1}
        else:
            found = letters(places(here.engine, here.adapter, ["q"]), Selection())
            assert len(list(discarded(here.engine, as_seen(here.engine, found), "a typo"))) == 1
        here.drain(concurrency=1)
        assert seen == {"replayed": ["order-1", "order-1", "order-2"], "discarded": ["order-1", "order-2"]}[way]


def test_a_slow_mapper_is_told_of(here: Office, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.consumers.mapping.SLOW", -1.0)
    handled(here)
    send(here, {"order": 1})
    here.drain()
    assert re.search(r"mapper order of queue 'q' took \d+\.\d s, and nothing is received meanwhile", caplog.text)


def test_a_forged_mark_is_a_dead_letter(here: Office) -> None:
    seen = handled(here)
    origins = ["no JSON", "[]", '{"id": 1}', '{"ordering_key": 1}', '{"properties": [1]}', '{"properties": {"headers": [1]}}']
    forged = [{MAPPED: "x" * 99}, {MAPPED: "0" * 32}, *({MAPPED: "", ORIGIN: origin} for origin in origins)]
    for number, headers in enumerate(forged):
        here.publish_job(f"k-{number}", b'{"order": 1}', job_id=f"j-{number}")
        message = Message(id=f"f-{number}", queue="q", body=b"{}", headers={**_headers(f"forged-{number}"), **headers})
        here.publish(message)
    here.drain()
    assert len(dead(here)) == 2 * len(forged)  # as many of a type without a handler
    assert seen == []


def _headers(key: str) -> dict[str, Any]:
    return {
        VERSION: 1,
        "postroom-id": key,
        "postroom-type": "order",
        "postroom-key": key,
        "postroom-enqueued-at": "1.0",
        "postroom-copy": 0,
        "postroom-replays": 0,
    }


def test_what_travels_with_a_copy_is_read_back() -> None:
    message = Message(id="x", queue="q", body=b"{}", headers={**_headers("k"), MAPPED: "0" * 32, ORIGIN: "{}", "theirs": 1})
    envelope = read_envelope(message)
    assert (envelope.mapped, envelope.origin, envelope.headers) == ("0" * 32, "{}", {"theirs": 1})
    assert envelope.to_headers() == message.headers


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda: None, "a mapper is f"),
        (lambda _message, _more: None, "a mapper is f"),
        (lambda *, message: message, "a mapper is f"),
    ],
)
def test_a_function_that_is_no_mapper_is_refused_with_its_place(function: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"test_mapper.py:\d+: {told}"):
        Jobs().mapper(queue="q")(function)


def test_a_mapper_that_would_have_to_be_awaited_or_iterated_is_refused() -> None:
    async def later(_: Message) -> None: ...

    def some(_: Message) -> Iterator[MappedJob]:
        yield MappedJob(type="t", key="k", payload={})

    for function in (later, some):
        with pytest.raises(ConfigurationError, match="a mapper is an ordinary function"):
            Jobs().mapper(queue="q")(function)  # type: ignore[arg-type]


def test_a_queue_has_one_mapper_and_a_mapper_has_a_queue_that_somebody_works_on(here: Office) -> None:
    here.jobs.mapper(queue=Queue(name="p"))(order)
    with pytest.raises(ConfigurationError, match=r"queue 'p' has a mapper already, at .*foreign.py:\d+"):
        here.jobs.mapper(queue="p")(lambda _: None)
    here.jobs.handler("order", queue="q")(lambda _: None)
    with pytest.raises(ConfigurationError, match="a mapper for queue 'p', but no handler takes jobs from it; there are: q"):
        here.drain()


def test_an_outbox_sends_jobs_for_a_foreign_queue_into_the_one_beside_it(here: Office) -> None:
    theirs = Queue(name="q", foreign=True)
    seen: list[str] = []

    @here.jobs.handler("order", queue=theirs)
    def handle(_: Order, context: Context) -> None:
        seen.append(context.job.queue)

    with here.engine.begin() as connection:
        Outbox(queue=theirs).enqueue(connection, "order", {"order_id": 1}, key="k")
    here.drain()
    assert seen == ["q.retry"]
