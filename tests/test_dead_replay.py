"""Replaying dead letters: each job once, whatever happens in between, on every backend."""

import threading
from collections import Counter

import pytest
from sqlalchemy import select

from postroom.adapters.seam import Message
from postroom.consumers import replay as replaying
from postroom.consumers.dead import Selection
from postroom.consumers.replay import Fate, Replay, Unproven, mark
from postroom.outbox.holdups import Holdup, hold_up
from postroom.outbox.tables import holdups
from support.postrooms import Postroom, postroom_at

pytestmark = pytest.mark.usefixtures("room")


@pytest.fixture(params=["memory", "sqlite", "postgresql", "mariadb"])
def room(request: pytest.FixtureRequest):
    kind = request.param
    database = request.getfixturevalue(f"{'sqlite' if kind == 'memory' else kind}_database_url")
    with postroom_at(database, "memory:" if kind == "memory" else database) as made:
        yield made


def replay(room: Postroom, selection: Selection | None = None, **how) -> Counter[Fate]:
    meant = mark(room.engine, room.dead(selection or Selection()))
    return Replay(room.engine, room.ledger).run(meant, progress=lambda _: None, **how)


def test_a_replayed_job_runs_once_with_a_clean_budget_of_attempts(room: Postroom):
    room.kill_jobs("order-1")
    assert replay(room) == {Fate.REPLAYED: 1}
    room.drain()
    assert room.sent == {"order-1": 1}
    assert (room.entry("order-1").status, room.entry("order-1").replays, room.entry("order-1").attempts) == ("done", 1, 0)
    assert room.dead_keys == []


def test_a_letter_whose_discard_was_cut_short_can_be_replayed(room: Postroom):
    room.kill_jobs("order-1")
    entry = room.entry("order-1")
    assert room.ledger.discard(entry.id, job=entry.job_id, replays=entry.replays, note="discarded: a typo")
    assert replay(room) == {Fate.REPLAYED: 1}
    room.drain()
    assert room.sent == {"order-1": 1}
    assert (room.entry("order-1").status, room.entry("order-1").attempts, room.dead_keys) == ("done", 0, [])


def test_a_second_replay_finds_nothing(room: Postroom):
    room.kill_jobs("order-1")
    replay(room)
    assert replay(room) == {}


def test_the_same_snapshot_replayed_twice_replays_each_job_once(room: Postroom):
    room.kill_jobs("order-1", "order-2")
    meant = mark(room.engine, room.dead())
    both = [Replay(room.engine, room.ledger).run(meant, progress=lambda _: None) for _ in range(2)]
    room.drain()
    assert both == [{Fate.REPLAYED: 2}, {Fate.GONE: 2}]
    assert room.runs == {"order-1": 1, "order-2": 1}


def test_two_operators_at_once_replay_each_job_once(room: Postroom):
    keys = [f"order-{number}" for number in range(10)]
    room.kill_jobs(*keys)
    meant = mark(room.engine, room.dead())
    together = threading.Barrier(2)
    fates: list[Counter[Fate]] = []

    def operator() -> None:
        together.wait()
        fates.append(Replay(room.engine, room.ledger).run(meant, progress=lambda _: None))

    operators = [threading.Thread(target=operator) for _ in range(2)]
    for each in operators:
        each.start()
    for each in operators:
        each.join()
    room.drain()
    assert sum(each[Fate.REPLAYED] for each in fates) == len(keys)
    assert room.runs == dict.fromkeys(keys, 1)
    assert {room.entry(key).replays for key in keys} == {1}


def test_a_replay_cut_short_between_ledger_and_queue_is_finished_by_the_next(room: Postroom):
    room.kill_jobs("order-1")
    assert room.ledger.retry(room.entry("order-1").id, replays=0)
    assert replay(room) == {Fate.REPLAYED: 1}
    room.drain()
    assert room.sent == {"order-1": 1}
    assert room.entry("order-1").replays == 1


def test_a_job_that_dies_again_meanwhile_is_not_replayed_in_a_loop(room: Postroom):
    room.kill_jobs("order-1", "order-2")
    room.broken["order-1"] = "still no mail server"
    meant = mark(room.engine, room.dead())
    fates = Replay(room.engine, room.ledger).run([*meant, *meant], progress=lambda _: room.drain() and None)
    assert fates == {Fate.REPLAYED: 2, Fate.GONE: 2}
    assert room.runs == {"order-1": 1, "order-2": 1}
    assert room.dead_keys == ["order-1"]


def test_only_what_was_chosen_is_replayed(room: Postroom):
    room.kill_jobs("order-1", "order-2", "order-3")
    assert replay(room, Selection(names=frozenset({"order-2"}))) == {Fate.REPLAYED: 1}
    assert sorted(room.dead_keys) == ["order-1", "order-3"]


def test_the_first_one_must_be_done_before_the_others_go(room: Postroom):
    room.kill_jobs("order-1", "order-2", "order-3")
    seen = []

    def work(_seconds: float) -> None:
        seen.append(len(room.dead_keys))
        room.drain()

    meant = mark(room.engine, room.dead())
    fates = Replay(room.engine, room.ledger, sleep=work).run(meant, progress=lambda _: None, canary=30.0)
    room.drain()
    assert fates == {Fate.REPLAYED: 3}
    assert seen == [2]
    assert sum(room.sent.values()) == 3


def test_when_the_first_one_fails_again_the_others_stay(room: Postroom):
    room.kill_jobs("order-1", "order-2", "order-3")
    room.broken |= dict.fromkeys(["order-1", "order-2", "order-3"], "still no mail server")
    meant = mark(room.engine, room.dead())
    with pytest.raises(Unproven, match="it failed again: still no mail server"):
        Replay(room.engine, room.ledger, sleep=lambda _: room.drain() and None).run(meant, progress=lambda _: None, canary=30.0)
    assert sum(room.runs.values()) == 1
    assert len(room.dead_keys) == 3


def test_when_the_first_one_is_not_finished_in_time_the_others_stay(room: Postroom):
    room.kill_jobs("order-1", "order-2")
    clock = iter(range(1000))
    meant = mark(room.engine, room.dead())
    with pytest.raises(Unproven, match=r"it was not finished within 5 s: pending, 0 of 1 attempts failed"):
        Replay(room.engine, room.ledger, clock=lambda: next(clock), sleep=lambda _: None).run(meant, progress=lambda _: None, canary=5.0)
    assert len(room.dead_keys) == 1


def test_behind_the_first_one_the_others_go_by_batches(room: Postroom, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(replaying, "BATCH", 2)
    keys = [f"order-{number}" for number in range(6)]
    room.kill_jobs(*keys)
    told: list[int] = []
    meant = mark(room.engine, room.dead())
    replays = Replay(room.engine, room.ledger, sleep=lambda _: room.drain() and None)
    assert replays.run(meant, progress=told.append, canary=30.0) == {Fate.REPLAYED: 6}
    room.drain()
    assert (told, room.runs, room.dead_keys) == ([1, 2, 2, 1], dict.fromkeys(keys, 1), [])


def test_one_alone_needs_no_canary(room: Postroom):
    room.kill_jobs("order-1")
    assert replay(room, canary=0.0) == {Fate.REPLAYED: 1}


def test_two_jobs_about_one_order_have_one_effect(room: Postroom):
    room.enqueue("order-4711")
    room.enqueue("order-4711")
    room.drain()
    room.enqueue("order-4711")
    room.drain()
    assert room.sent == {"order-4711": 1}
    assert room.dead_keys == []


def test_a_letter_whose_work_was_done_by_another_is_removed(room: Postroom):
    room.kill_jobs("order-1")
    room.enqueue("order-1")
    room.drain()  # the second job of the key is dead, too: its key has failed
    assert replay(room, Selection(limit=1)) == {Fate.REPLAYED: 1}
    room.drain()
    assert replay(room) == {Fate.DONE: 1}
    assert (room.sent, room.dead_keys) == ({"order-1": 1}, [])


def test_a_letter_whose_work_was_done_by_another_holds_up_its_ordering_key_no_more(room: Postroom):
    room.kill_jobs("order-1")
    room.enqueue("order-1")
    room.drain()
    _, (_, twin) = room.dead()
    assert twin.envelope
    with room.engine.begin() as connection:  # as the ledger notes it in an ordered queue on a broker
        hold_up(connection, [Holdup("emails", "order-1", twin.envelope.id)])
    replay(room, Selection(limit=1))
    room.drain()
    assert replay(room) == {Fate.DONE: 1}
    with room.engine.connect() as connection:
        assert connection.execute(select(holdups)).all() == []


def test_both_letters_of_one_key_lead_to_one_run(room: Postroom):
    room.kill_jobs("order-1")
    room.enqueue("order-1")
    room.drain()
    assert replay(room) == {Fate.REPLAYED: 2}
    room.drain()
    assert (room.sent, room.entry("order-1").replays, room.dead_keys) == ({"order-1": 1}, 1, [])


def test_a_letter_in_conflict_with_its_key_stays_and_leaves_the_owner_alone(room: Postroom):
    room.kill_jobs("order-1")
    room.enqueue("order-1", payload="another")
    room.drain()
    fates = replay(room)
    assert fates == {Fate.REPLAYED: 1, Fate.CONFLICT: 1}
    room.drain()
    assert (room.sent, room.dead_keys) == ({"order-1": 1}, ["order-1"])


def test_a_job_without_a_handler_can_be_replayed_when_there_is_one(room: Postroom):
    room.enqueue("order-1", type_="unknown")
    room.drain()
    assert room.dead_keys == ["order-1"]
    assert replay(room) == {Fate.REPLAYED: 1}
    room.drain()
    assert room.dead_keys == ["order-1"]  # there is still none


def test_a_first_one_that_comes_back_unhandled_stops_the_others(room: Postroom):
    room.adapter.publish([Message(id=name, queue="emails", body=b"\xff") for name in ("theirs-1", "theirs-2")])
    room.drain()
    meant = mark(room.engine, room.dead())
    with pytest.raises(Unproven, match="it came back: "):
        Replay(room.engine, room.ledger, sleep=lambda _: room.drain() and None).run(meant, progress=lambda _: None, canary=30.0)
    assert len(room.dead_keys) == 2


def test_a_first_one_that_still_has_no_handler_stops_the_others(room: Postroom):
    for key in ("order-1", "order-2"):
        room.enqueue(key, type_="unknown")
    room.drain()
    meant = mark(room.engine, room.dead())
    with pytest.raises(Unproven, match="it failed again: no handler for type 'unknown'"):
        Replay(room.engine, room.ledger, sleep=lambda _: room.drain() and None).run(meant, progress=lambda _: None, canary=30.0)
    assert len(room.dead_keys) == 2


def test_a_foreign_message_comes_back_with_its_bytes(room: Postroom):
    room.adapter.publish([Message(id="theirs", queue="emails", body=b"\xff\x00", headers={"their": b"\x00\xff"})])
    room.drain()
    assert replay(room) == {Fate.REPLAYED: 1}
    room.drain()
    [(_, letter)] = room.dead()
    assert (letter.message.body, letter.message.headers["their"]) == (b"\xff\x00", b"\x00\xff")


def test_a_parked_row_is_replayed_and_watched_until_it_is_sent(room: Postroom):
    room.enqueue("order-1", "order-2")
    for key in ("order-1", "order-2"):
        room.park(key, "too large")
    meant = mark(room.engine, room.dead())
    fates = Replay(room.engine, room.ledger, sleep=lambda _: room.drain() and None).run(meant, progress=lambda _: None, canary=30.0)
    room.drain()
    assert fates == {Fate.REPLAYED: 2}
    assert room.sent == {"order-1": 1, "order-2": 1}


def test_a_parked_row_that_is_refused_again_stops_the_others(room: Postroom):
    room.enqueue("order-1", "order-2")
    for key in ("order-1", "order-2"):
        room.park(key, "too large")
    meant = mark(room.engine, room.dead())
    with pytest.raises(Unproven, match="the broker refused it again: still too large"):
        Replay(room.engine, room.ledger, sleep=lambda _: room.park("order-1", "still too large")).run(meant, progress=lambda _: None, canary=30.0)
    assert room.outbox_statuses() == {"order-1": "parked", "order-2": "parked"}
