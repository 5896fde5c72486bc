"""How a relay walks along a long line of rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, update

from postroom.outbox.claim import RESCAN, Batch, Line
from postroom.outbox.lanes import Tenure
from postroom.outbox.options import RelayOptions
from postroom.outbox.rows import lane_of
from postroom.outbox.tables import LANES, outbox
from support.outboxes import enqueue, enqueue_ids, let_pass, new_row, outbox_at

WHOLE = Tenure(relay="a", lanes=tuple(range(LANES)), fence=1)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with outbox_at(database_url) as engine:
        yield engine


class Host:
    """A line and the clock of its host."""

    def __init__(self, engine: Engine, batch: int) -> None:
        self.engine = engine
        self.time = 0.0
        self.line = Line(engine, RelayOptions(batch=batch), clock=lambda: self.time)

    def next(self, tenure: Tenure = WHOLE) -> list[str]:
        return ids(self.line.next(tenure))

    def send_next(self) -> list[str]:
        """What comes next, and mark it."""
        batch = self.line.next(WHOLE)
        with self.engine.begin() as connection:
            connection.execute(update(outbox).where(outbox.c.seq.in_([row.seq for row in batch.rows])).values(status="sent"))
        return ids(batch)


def ids(batch: Batch) -> list[str]:
    return [row.message.id for row in batch.rows]


def commit_late(engine: Engine) -> None:
    """A row whose transaction began long ago ends only now."""
    enqueue_ids(engine, "late")
    with engine.begin() as connection:
        connection.execute(update(outbox).where(outbox.c.id == "late").values(available_at=outbox.c.available_at - 1000))


def test_s058_a_row_that_commits_behind_a_full_batch_is_met_when_the_line_is_read_from_its_beginning_again(engine):
    host = Host(engine, batch=2)
    enqueue_ids(engine, "a", "b", "c", "d", "e", "f")
    assert host.send_next() == ["a", "b"]
    commit_late(engine)
    assert host.send_next() == ["c", "d"], "the dead entries of a and b are not walked through once more"
    host.time += RESCAN
    assert host.send_next() == ["late", "e"]


def test_s058_a_row_that_commits_late_is_in_the_first_batch_that_is_not_full(engine):
    host = Host(engine, batch=2)
    enqueue_ids(engine, "a", "b", "c")
    host.send_next()
    commit_late(engine)
    assert host.send_next() == ["late", "c"]


def test_rows_left_behind_come_first_after_a_restart(engine):
    host = Host(engine, batch=2)
    enqueue_ids(engine, "a", "b", "c", "d", "e")
    assert host.next() == ["a", "b"]
    host.line.restart()
    assert host.next() == ["a", "b"]


def test_rows_left_behind_by_another_relay_come_first_when_its_lanes_are_taken_over(engine):
    host = Host(engine, batch=2)
    enqueue_ids(engine, "a", "b", "c", "d", "e")
    host.next()
    assert host.next(Tenure(relay="a", lanes=WHOLE.lanes, fence=2)) == ["a", "b"]


def test_only_the_rows_of_the_lanes_held_are_read(engine):
    names = [f"row-{number}" for number in range(20)]
    enqueue_ids(engine, *names)
    held = tuple(range(32))
    assert Host(engine, batch=50).next(Tenure(relay="a", lanes=held, fence=1)) == [name for name in names if lane_of(name) in held]


def test_without_lanes_the_database_is_not_asked(engine):
    outbox.drop(engine)
    assert Host(engine, batch=50).next(Tenure(relay="a")) == []


def test_whether_anything_is_due_is_asked_over_all_lanes(engine):
    line = Host(engine, batch=1).line
    enqueue(engine, new_row("later", delay=100.0))
    assert not line.anything_due()
    let_pass(engine, 100.0)
    assert line.anything_due()
