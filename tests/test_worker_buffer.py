"""Who gets which job next: the buffer with its gates, and the look-ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from postroom.adapters.seam import Queue
from postroom.consumers.jobs import Handler
from postroom.consumers.worker.buffer import Buffer
from postroom.consumers.worker.pace import Pace
from postroom.consumers.worker.work import Work
from support.works import handler_of, work_of


def measured(handler: Handler, seconds: float, *, most: int = 128) -> Pace:
    pace = Pace(budget=0.05, most=most)
    for _ in range(100):
        pace.measured(handler, seconds)
    return pace


def keys(works: list[Work]) -> list[str]:
    return [work.envelope.key for work in works]


def filled(pace: Pace, handler: Handler, count: int) -> Buffer:
    buffer = Buffer(pace)
    buffer.put([work_of(str(number), handler) for number in range(count)])
    return buffer


def in_background(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def test_the_look_ahead_is_one_as_long_as_nothing_was_measured() -> None:
    handler = handler_of()
    assert keys(filled(Pace(budget=0.05, most=128), handler, 5).take(wait=False)) == ["0"]


@pytest.mark.parametrize(("seconds", "expected"), [(0.00001, 128), (0.001, 50), (0.01, 5), (0.03, 1), (3.0, 1)])
def test_a_round_holds_as_many_jobs_as_their_handlers_do_in_its_time(seconds: float, expected: int) -> None:
    handler = handler_of()
    taken = filled(measured(handler, seconds), handler, 300).take(wait=False)
    assert keys(taken) == [str(number) for number in range(len(taken))]
    assert abs(len(taken) - expected) <= 1


def test_one_slow_measurement_makes_the_look_ahead_short_again() -> None:
    handler = handler_of()
    pace = measured(handler, 0.0001)
    pace.measured(handler, 2.0)
    assert len(filled(pace, handler, 300).take(wait=False)) == 1


def test_a_slow_job_ends_a_round_and_begins_the_next() -> None:
    quick, slow = handler_of(), handler_of()
    pace = measured(quick, 0.0001)
    pace.measured(slow, 10.0)
    buffer = Buffer(pace)
    buffer.put([work_of("a", quick), work_of("b", quick), work_of("slow", slow), work_of("c", quick)])
    assert [keys(buffer.take(wait=False)) for _ in range(3)] == [["a", "b"], ["slow"], ["c"]]


def test_lanes_that_have_nothing_to_do_get_their_share() -> None:
    handler = handler_of()
    buffer = Buffer(measured(handler, 0.0001))
    shares: list[list[str]] = []
    lanes = [in_background(lambda: shares.append(keys(buffer.take(wait=True)))) for _ in range(4)]
    while buffer.idle < 4:
        pass
    buffer.put([work_of(str(number), handler) for number in range(8)])
    for lane in lanes:
        lane.join(60)
    assert sorted(key for share in shares for key in share) == [str(number) for number in range(8)]
    assert len(shares) == 4


def test_a_closed_buffer_gives_back_what_nobody_took_and_wakes_all_that_wait() -> None:
    handler = handler_of()
    buffer = Buffer(Pace(budget=0.05, most=128))
    taken: list[list[Work]] = []
    waiting = in_background(lambda: taken.append(buffer.take(wait=True)))
    while not buffer.idle:
        pass
    limited = handler_of(concurrency=1)
    buffer.close()
    waiting.join(60)
    assert taken == [[]]
    other = Buffer(Pace(budget=0.05, most=128))
    other.put([work_of("a", limited), work_of("b", limited), work_of("c", handler)])
    assert keys(other.take(wait=False)) == ["a"]
    assert keys(other.take(wait=False)) == ["c"]
    assert keys(other.close()) == ["b"]
    assert other.take(wait=True) == []


def test_no_more_of_a_handlers_jobs_run_at_once_than_its_concurrency() -> None:
    limited, free = handler_of(concurrency=2), handler_of()
    pace = measured(limited, 0.0001)
    pace.measured(free, 0.0)
    buffer = Buffer(pace)
    works = [work_of(str(number), limited) for number in range(4)]
    buffer.put([*works, work_of("of another handler", free)])
    assert keys(buffer.take(wait=False)) == ["0", "1", "of another handler"]
    assert buffer.take(wait=False) == []
    buffer.leave(works[0])
    assert keys(buffer.take(wait=False)) == ["2"]
    buffer.leave(works[2])
    buffer.leave(works[1])
    assert keys(buffer.take(wait=False)) == ["3"]


def test_of_an_ordered_queue_one_job_of_a_key_runs_at_a_time_and_in_order() -> None:
    handler = handler_of(queue=Queue(name="ordered", ordered=True))
    buffer = Buffer(measured(handler, 0.0001))
    first, second, third, other = (work_of(key, handler, ordering_key=key[0]) for key in ("a1", "a2", "a3", "b1"))
    buffer.put([first, second, third, other])
    assert keys(buffer.take(wait=False)) == ["a1", "b1"]
    assert buffer.take(wait=False) == []
    buffer.leave(first)
    newcomer = work_of("a4", handler, ordering_key="a")
    buffer.put([newcomer])
    for expected in (second, third, newcomer):
        assert buffer.take(wait=False) == [expected]
        assert buffer.take(wait=False) == []
        buffer.leave(expected)


def test_a_job_that_was_answered_later_is_the_next_and_gets_a_round_of_its_own() -> None:
    handler = handler_of(concurrency=1)
    buffer = Buffer(measured(handler, 0.0001))
    later = work_of("later", handler)
    buffer.put([later, work_of("b", handler)])
    assert buffer.take(wait=False) == [later]
    later.alone = True
    buffer.put_first([later])
    assert buffer.take(wait=False) == [later]
    assert buffer.take(wait=False) == []
    buffer.leave(later)
    assert keys(buffer.take(wait=False)) == ["b"]
