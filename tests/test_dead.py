"""Finding, grouping and discarding dead letters, on every backend."""

import pytest

from postroom.adapters.seam import Message
from postroom.consumers.dead import Selection, as_seen, discarded, grouped, letters, places
from postroom.consumers.letters import Revival
from postroom.consumers.replay import Fate, Replay, mark
from postroom.consumers.status import status_of
from support.postrooms import Postroom, postroom_at

ORDER_2 = Selection(names=frozenset({"order-2"}))


@pytest.fixture(params=["memory", "sqlite", "postgresql", "mariadb"])
def room(request: pytest.FixtureRequest):
    kind = request.param
    database = request.getfixturevalue(f"{'sqlite' if kind == 'memory' else kind}_database_url")
    with postroom_at(database, "memory:" if kind == "memory" else database) as made:
        yield made


@pytest.fixture
def many(room: Postroom) -> Postroom:
    room.kill_jobs("order-1", error="order 1 not found")
    room.kill_jobs("order-2", error="no mail server")
    room.kill_jobs("order-3", error="order 3 not found")
    return room


def keys(room: Postroom, **chosen: object) -> list[str]:
    return [letter.envelope.key for _, letter in room.dead(Selection(**chosen))]


def test_a_letter_tells_which_job_died_of_what(room: Postroom):
    room.kill_jobs("order-1", error="no mail server", payload={"to": "a@example.org"})
    [(place, letter)] = room.dead()
    assert (place.source, letter.queue, letter.attempts) == ("queue", "emails", 1)
    assert (letter.envelope.type, letter.envelope.key) == ("send", "order-1")
    assert "no mail server" in letter.error
    assert letter.message.body == b'{"to":"a@example.org"}'


def test_letters_are_listed_oldest_first(many: Postroom):
    assert keys(many) == ["order-1", "order-2", "order-3"]


def test_letters_are_chosen_by_key_by_job_by_type_and_by_error(many: Postroom):
    second = many.dead()[1][1]
    assert keys(many, names=frozenset({"order-2"})) == ["order-2"]
    assert keys(many, names=frozenset({second.envelope.id})) == ["order-2"]
    assert keys(many, names=frozenset({second.id})) == ["order-2"]
    assert keys(many, types=frozenset({"send"})) == ["order-1", "order-2", "order-3"]
    assert keys(many, types=frozenset({"other"})) == []
    assert keys(many, error="NOT FOUND") == ["order-1", "order-3"]
    assert keys(many, error="not found", limit=1) == ["order-1"]


def test_letters_are_grouped_by_error_with_the_numbers_left_out(many: Postroom):
    groups = grouped(letter for _, letter in many.dead())
    assert [(group.count, dict(group.types)) for group in groups] == [(2, {"send": 2}), (1, {"send": 1})]
    assert "order … not found" in groups[0].error
    assert groups[0].first < groups[0].last
    assert groups[0].example == many.dead()[0][1].id


def test_more_letters_than_a_page_are_all_found(room: Postroom):
    messages = [Message(id=f"m{number}", queue="emails", body=b"?") for number in range(250)]
    room.adapter.publish(messages)
    room.drain()
    assert len({letter.id for _, letter in room.dead()}) == 250


def test_a_discarded_letter_is_gone_and_the_ledger_keeps_the_reason(many: Postroom):
    chosen = many.dead(Selection(names=frozenset({"order-2"})))
    assert [letter.envelope.key for letter in discarded(many.engine, as_seen(many.engine, chosen), "a test order")] == ["order-2"]
    assert many.dead_keys == ["order-1", "order-3"]
    [status] = status_of(many.engine, "order-2")
    assert status.status == "failed"
    assert status.last_error == "discarded: a test order; it was: no mail server"


def test_discarding_twice_changes_nothing_more(many: Postroom):
    chosen = many.dead(Selection(names=frozenset({"order-2"})))
    list(discarded(many.engine, as_seen(many.engine, chosen), "a test order"))
    assert list(discarded(many.engine, as_seen(many.engine, chosen), "a test order")) == []
    assert many.entry("order-2").last_error == "discarded: a test order; it was: no mail server"


def test_discarding_an_old_letter_leaves_a_job_that_was_replayed_alone(many: Postroom):
    chosen = as_seen(many.engine, many.dead(ORDER_2))
    many.ledger.retry(many.entry("order-2").id, replays=0)
    assert list(discarded(many.engine, chosen, "a test order")) == []
    assert (many.entry("order-2").status, many.entry("order-2").last_error) == ("pending", "no mail server")
    assert "order-2" in many.dead_keys


def test_a_discard_ends_the_death_that_it_has_seen_and_none_that_came_later(many: Postroom):
    chosen = as_seen(many.engine, many.dead(ORDER_2))
    Replay(many.engine, many.ledger).run(mark(many.engine, many.dead(ORDER_2)), progress=lambda _: None)
    many.broken["order-2"] = "still no mail server"
    many.drain()
    assert list(discarded(many.engine, chosen, "a test order")) == []
    assert (many.entry("order-2").last_error, many.dead_keys[-1]) == ("still no mail server", "order-2")


def test_a_discard_after_a_replay_that_was_cut_short_ends_the_job_and_what_is_put_back_all_the_same_is_not_run(many: Postroom):
    many.ledger.retry(many.entry("order-2").id, replays=0)
    [(place, letter)] = many.dead(ORDER_2)
    meant, chosen = mark(many.engine, [(place, letter)]), as_seen(many.engine, [(place, letter)])
    place.put_back({letter.id: Revival(headers={"postroom-replays": 1})})  # that replay was slow, and no more
    assert len(list(discarded(many.engine, chosen, "a test order"))) == 1
    assert Replay(many.engine, many.ledger).run(meant, progress=lambda _: None) == {Fate.GONE: 1}
    many.drain()
    assert (many.runs, many.sent) == ({}, {})
    assert (many.entry("order-2").status, many.entry("order-2").last_error) == ("failed", "discarded: a test order; it was: no mail server")


def test_a_job_whose_letter_somebody_has_removed_is_found_by_its_name_and_its_discard_frees_its_key(many: Postroom):
    [(place, letter)] = many.dead(Selection(names=frozenset({"order-2"})))
    place.remove([letter.id], "")
    assert many.dead_keys == ["order-1", "order-3"]
    chosen = Selection(names=frozenset({"order-2", "order-3"}))
    there = places(many.engine, many.adapter, ["emails"], names=chosen.names)
    assert [(found.source, found.id == letter.envelope.id) for _, found in letters(there, chosen)] == [("queue", False), ("ledger", True)]
    assert len(list(discarded(many.engine, as_seen(many.engine, letters(there, chosen)), "purged"))) == 2
    assert list(letters(there, chosen)) == []
    many.enqueue("order-2", payload="another")
    many.drain()
    assert many.sent == {"order-2": 1}


def test_s067_parked_rows_are_listed_and_discarded_beside_the_dead_letters(many: Postroom):
    many.enqueue("order-4")
    many.park("order-4", "message too large")
    found = {letter.envelope.key: (letter.source, letter.error) for _, letter in many.dead()}
    assert found["order-4"] == ("outbox", "message too large")
    assert found["order-1"][0] == "queue"
    chosen = many.dead(Selection(names=frozenset({"order-4"})))
    assert len(list(discarded(many.engine, as_seen(many.engine, chosen), "too large for good"))) == 1
    assert "order-4" not in many.dead_keys
    [status] = status_of(many.engine, "order-4")
    assert (status.status, status.last_error) == ("failed", "discarded: too large for good; it was: message too large")


def test_parked_rows_can_be_told_by_their_queue(many: Postroom):
    many.enqueue("order-4")
    many.park("order-4", "message too large")
    for queue, found in (("emails", ["order-4"]), ("others", [])):
        there = letters(places(many.engine, many.adapter, [], parked_for=[queue]), Selection())
        assert [letter.envelope.key for _, letter in there] == found
