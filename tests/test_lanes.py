"""Leased lanes: fair shares, hand-over, fences; on each database."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, func, select

from postroom.outbox.lanes import Lanes, Tenure, give_up
from postroom.outbox.tables import LANES, lanes, relays
from support.outboxes import let_pass, outbox_at

LEASE = 60.0


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with outbox_at(database_url) as engine:
        yield engine


class Clock:
    """A host's clock that a test moves."""

    def __init__(self, start: float = 0.0) -> None:
        self.time = start

    def __call__(self) -> float:
        return self.time


def lanes_of(engine: Engine, name: str, clock: Clock | None = None) -> Lanes:
    return Lanes(engine, name=name, lease=LEASE, clock=clock or Clock())


def settled(*relays: Lanes) -> list[Tenure]:
    """What each holds when all have looked often enough to notice each other, a third of the lease apart."""
    for _ in range(3):
        for relay in relays:
            relay.doubt()
            relay.look()
    return [relay.look() for relay in relays]


def tokens(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(select(lanes.c.token).order_by(lanes.c.lane)).scalars())


def test_a_lone_relay_takes_all_lanes(engine):
    tenure = lanes_of(engine, "a").look()
    assert tenure.whole
    assert tenure.lanes == tuple(range(LANES))


def test_a_lone_relay_with_a_fresh_lease_asks_nothing_of_the_database(engine):
    relay = lanes_of(engine, "a")
    tenure = relay.look()
    lanes.drop(engine)
    assert relay.look() is tenure


@pytest.mark.parametrize("count", [2, 3])
def test_relays_come_to_fair_shares_that_do_not_overlap(engine, count):
    tenures = settled(*(lanes_of(engine, f"relay-{number}") for number in range(count)))
    held = [lane for tenure in tenures for lane in tenure.lanes]
    assert sorted(held) == list(range(LANES))
    assert max(len(tenure.lanes) for tenure in tenures) == -(-LANES // count)


def test_with_more_relays_than_lanes_some_hold_none(engine):
    crowd = [lanes_of(engine, f"relay-{number}") for number in range(LANES + 2)]
    for relay in crowd:
        relay.renew()
    held = [len(relay.look().lanes) for relay in crowd]
    assert sum(held) == LANES
    assert max(held) == 1


def test_a_relay_that_leaves_hands_its_lanes_on_at_once(engine):
    first, second = lanes_of(engine, "a"), lanes_of(engine, "b")
    settled(first, second)
    first.release()
    assert second.look().whole
    with engine.connect() as connection:
        assert list(connection.execute(select(relays.c.id)).scalars()) == ["b"]


def test_s063_the_lanes_of_a_relay_that_died_go_to_the_others_when_the_lease_runs_out(engine):
    dead, heir = lanes_of(engine, "dead"), lanes_of(engine, "heir")
    settled(dead, heir)
    let_pass(engine, LEASE / 2)
    heir.renew()
    assert len(heir.look().lanes) == LANES / 2
    let_pass(engine, LEASE / 2 + 1)
    heir.renew()
    assert heir.look().whole


def test_the_lanes_of_a_relay_that_is_known_to_be_dead_are_given_up_by_its_name_at_once(engine):
    dead, heir, third = lanes_of(engine, "dead"), lanes_of(engine, "heir"), lanes_of(engine, "third")
    settled(dead, heir, third)
    give_up(engine, "dead")
    give_up(engine, "dead")
    tenures = settled(heir, third)
    assert sorted(lane for tenure in tenures for lane in tenure.lanes) == list(range(LANES))
    with engine.connect() as connection:
        assert sorted(connection.execute(select(relays.c.id)).scalars()) == ["heir", "third"]


def test_a_lease_that_nobody_took_over_can_be_renewed_after_it_ran_out(engine):
    relay = lanes_of(engine, "a")
    before = relay.look()
    let_pass(engine, 10 * LEASE)
    relay.doubt()
    assert relay.look() == before


def test_s070_a_lane_lost_and_taken_again_has_a_newer_token_than_all_that_were_held(engine):
    relay, rival = lanes_of(engine, "a"), lanes_of(engine, "b")
    before = relay.look()
    let_pass(engine, LEASE + 1)
    rival.look()
    rival.release()
    relay.doubt()
    after = relay.look()
    assert after.whole
    assert min(tokens(engine)) > before.fence


def test_a_token_grows_at_each_change_of_hands_and_only_then(engine):
    relay = lanes_of(engine, "a")
    relay.look()
    first = tokens(engine)
    relay.renew()
    assert tokens(engine) == first
    relay.release()
    lanes_of(engine, "b").look()
    assert all(new > old for new, old in zip(tokens(engine), first, strict=True))


def test_s072_hosts_whose_clocks_differ_steal_no_lease_and_keep_no_dead_one(engine):
    slow, fast = lanes_of(engine, "slow", Clock(0.0)), lanes_of(engine, "fast", Clock(90.0))
    slow.look()
    assert fast.look().lanes == ()
    let_pass(engine, LEASE + 1)
    fast.renew()
    assert fast.look().whole


def test_s072_a_clock_that_steps_backwards_only_delays_the_next_renewal(engine):
    clock = Clock(1000.0)
    relay = lanes_of(engine, "a", clock)
    relay.look()
    clock.time = 0.0
    assert relay.look().whole
    let_pass(engine, LEASE + 1)
    assert lanes_of(engine, "b").look().whole, "the database's time decides that the lease is over"


def test_the_lease_is_renewed_when_a_third_of_it_has_passed(engine):
    clock = Clock()
    relay = lanes_of(engine, "a", clock)
    relay.look()
    let_pass(engine, LEASE - 1)
    clock.time = LEASE / 3
    relay.look()
    let_pass(engine, 2)
    assert lanes_of(engine, "b").look().lanes == ()


def test_a_lone_relay_notices_another_though_a_thread_renews_its_lease(engine):
    clock = Clock()
    relay, newcomer = lanes_of(engine, "a", clock), lanes_of(engine, "b")
    relay.look()
    newcomer.look()
    clock.time = LEASE / 3
    relay.renew()
    assert len(relay.look().lanes) == LANES / 2


def test_many_relays_that_start_at_once_create_the_lanes_once_and_share_them(engine):
    crowd = [lanes_of(engine, f"relay-{number}") for number in range(4)]
    barrier = threading.Barrier(len(crowd))
    failures: list[Exception] = []

    def begin(relay: Lanes) -> None:
        barrier.wait()
        try:
            relay.look()
        except Exception as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=begin, args=(relay,)) for relay in crowd]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with engine.connect() as connection:
        assert connection.execute(select(func.count()).select_from(lanes)).scalar() == LANES
    assert sorted(len(tenure.lanes) for tenure in settled(*crowd)) == [16, 16, 16, 16]
