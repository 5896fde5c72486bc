"""From rows to answers: waves, order within a key, and adapters that raise."""

from __future__ import annotations

import pytest
from fakes import BUSY, CONFIRMED, REFUSED, UNKNOWN, Scripted

from postroom.adapters.errors import Closed, InvalidMessage, Unavailable
from postroom.adapters.seam import Message, Verdict
from postroom.outbox.claim import Due
from postroom.outbox.sending import send, waves


def due(job_id: str, queue: str = "emails", *, ordered: bool = False) -> Due:
    """A row whose ordering key is the first letter of its id."""
    return Due(seq=0, message=Message(id=job_id, queue=queue, body=b"{}"), place=(queue, job_id[0]), attempts=0, ordered=ordered)


def dues(*ids: str) -> list[Due]:
    return [due(job_id) for job_id in ids]


def verdicts(answers) -> dict[str, Verdict]:
    return {row.message.id: outcome.verdict for row, outcome in answers}


def test_waves_keep_each_keys_order_and_have_no_key_twice():
    split = waves(dues("a1", "b1", "a2", "a3", "c1", "b2"))
    assert [[row.message.id for row in wave] for wave in split] == [["a1", "b1", "c1"], ["a2", "b2"], ["a3"]]


def test_the_same_key_in_two_queues_is_two_keys():
    assert len(waves([due("a1", "emails"), due("a1", "invoices")])) == 1


def test_an_atomic_adapter_gets_the_batch_whole():
    adapter = Scripted()
    send(adapter, dues("a1", "a2", "b1"))
    assert adapter.batches == [["a1", "a2", "b1"]]


def test_behind_a_refused_row_of_an_ordered_queue_the_rest_of_its_key_is_not_sent_in_one_batch_either():
    adapter = Scripted()
    adapter.answers["a1"] = [REFUSED]
    answers = send(adapter, [due("a1", ordered=True), due("a2", ordered=True), due("b1", "other"), due("b2", "other")])
    assert adapter.batches == [["a1", "b1", "b2"]]
    assert verdicts(answers) == {"a1": Verdict.REFUSED, "b1": Verdict.CONFIRMED, "b2": Verdict.CONFIRMED}


def test_an_adapter_that_is_not_atomic_never_has_two_rows_of_a_key_in_flight():
    adapter = Scripted(atomic=False)
    send(adapter, dues("a1", "a2", "b1"))
    assert adapter.batches == [["a1", "b1"], ["a2"]]


@pytest.mark.parametrize("outcome", [BUSY, REFUSED, UNKNOWN])
def test_behind_a_row_that_is_not_confirmed_the_rest_of_its_key_is_not_sent(outcome):
    adapter = Scripted(atomic=False)
    adapter.answers["a1"] = [outcome]
    answers = send(adapter, dues("a1", "a2", "b1", "b2", "a3"))
    assert verdicts(answers) == {"a1": outcome.verdict, "b1": Verdict.CONFIRMED, "b2": Verdict.CONFIRMED}


def test_behind_a_wave_without_any_answer_nothing_is_sent():
    adapter = Scripted(atomic=False)
    adapter.always = dict.fromkeys(("a1", "b1"), UNKNOWN)
    assert len(send(adapter, dues("a1", "b1", "a2", "b2"))) == 2
    assert len(adapter.batches) == 1


def test_a_stop_is_honoured_between_waves():
    adapter = Scripted(atomic=False)
    answers = send(adapter, dues("a1", "a2", "a3"), go_on=lambda: len(adapter.batches) < 2)
    assert list(verdicts(answers)) == ["a1", "a2"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Unavailable("can't reach it"), "can't reach it"),
        (ConnectionResetError("reset"), "ConnectionResetError: reset"),
        (TimeoutError("slow"), "TimeoutError: slow"),
        (Closed("closed"), "closed"),
    ],
)
def test_s066_an_adapter_that_raises_because_its_broker_is_away_charges_no_row(error, told):
    adapter = Scripted()
    adapter.away = error
    answers = send(adapter, dues("a1", "b1"))
    assert verdicts(answers) == {"a1": Verdict.UNKNOWN, "b1": Verdict.UNKNOWN}
    assert answers[0][1].reason == told


def test_s017_a_row_at_which_the_adapter_raises_is_found_and_it_alone_is_charged():
    adapter = Scripted()
    adapter.always["b1"] = TypeError("can't encode a float header")
    answers = send(adapter, dues("a1", "b1", "b2", "c1"))
    assert verdicts(answers) == {"a1": Verdict.CONFIRMED, "b1": Verdict.BUSY, "c1": Verdict.CONFIRMED}
    assert dict(zip(verdicts(answers), (outcome.reason for _, outcome in answers), strict=True))["b1"] == "TypeError: can't encode a float header"


def test_s017_a_message_that_an_adapter_calls_invalid_is_refused_for_good():
    adapter = Scripted()
    adapter.always["a1"] = InvalidMessage("headers.x: 1.5 can't travel")
    assert verdicts(send(adapter, dues("a1", "b1"))) == {"a1": Verdict.REFUSED, "b1": Verdict.CONFIRMED}


def test_a_broker_that_goes_away_while_the_culprit_is_sought_ends_the_search():
    adapter = Scripted()
    adapter.answers["a1"] = [TypeError("first the batch")]
    adapter.always = dict.fromkeys(("a1", "b1", "c1"), UNKNOWN)
    answers = send(adapter, dues("a1", "b1", "c1"))
    assert verdicts(answers) == {"a1": Verdict.UNKNOWN}


def test_an_adapter_that_answers_for_too_few_messages_confirms_none_of_them():
    adapter = Scripted()
    adapter.publish = lambda messages: [CONFIRMED] * (len(messages) - 1)
    assert set(verdicts(send(adapter, dues("a1", "b1"))).values()) == {Verdict.BUSY}
