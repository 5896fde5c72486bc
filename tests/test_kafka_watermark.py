"""How far a partition is done: never past a job that is not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postroom.adapters.kafka.watermark import Watermark


def begun(*offsets: int) -> Watermark:
    watermark = Watermark()
    for offset in offsets:
        watermark.begin(offset)
    return watermark


def test_nothing_is_known_before_something_was_read():
    assert (Watermark().committable, Watermark().span) == (None, 0)


def test_s025_parallel_workers_finish_out_of_order():
    watermark = begun(1, 2, 3, 4, 5)
    for offset in (3, 2, 5):
        watermark.finish(offset)
    assert watermark.committable == 1
    watermark.finish(1)
    assert watermark.committable == 4
    watermark.finish(4)
    assert watermark.committable == 6


def test_gaps_of_compaction_are_nothing_to_wait_for():
    watermark = begun(3, 10, 11)
    watermark.finish(3)
    assert watermark.committable == 10
    watermark.finish(11)
    watermark.finish(10)
    assert watermark.committable == 12


def test_the_end_of_the_log_is_reached_past_offsets_that_hold_no_record():
    watermark = begun(0)
    watermark.reach(2)
    assert watermark.committable == 0
    watermark.finish(0)
    assert watermark.committable == 2


def test_an_empty_partition_is_done_up_to_its_end():
    watermark = Watermark()
    watermark.reach(7)
    assert watermark.committable == 7


def test_the_end_of_the_log_never_moves_back():
    watermark = begun(5)
    watermark.finish(5)
    watermark.reach(3)
    assert watermark.committable == 6


def test_the_span_is_what_a_successor_would_read_again():
    watermark = begun(*range(100))
    for offset in range(1, 100):
        watermark.finish(offset)
    assert (watermark.committable, watermark.span) == (0, 100)
    watermark.finish(0)
    assert (watermark.committable, watermark.span) == (100, 0)


def test_an_offset_that_was_read_before_or_lies_before_the_start_is_not_begun_again():
    watermark = Watermark(2)
    assert [watermark.begin(offset) for offset in (0, 2, 3, 2, 4)] == [False, True, True, False, True]
    assert watermark.committable == 2


@given(gaps=st.lists(st.integers(1, 5), min_size=1, max_size=60), order=st.randoms())
def test_whatever_the_order_nothing_unfinished_is_passed_and_in_the_end_all_is_done(gaps, order):
    offsets = [sum(gaps[: number + 1]) for number in range(len(gaps))]
    watermark, left = begun(*offsets), set(offsets)
    before = watermark.committable
    for offset in order.sample(offsets, len(offsets)):
        watermark.finish(offset)
        left.remove(offset)
        assert watermark.committable == min(left, default=offsets[-1] + 1)
        assert before <= watermark.committable
        before = watermark.committable
    assert watermark.span == 0
