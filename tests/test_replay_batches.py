"""Replays go by batches, and what is told of them is exact, wherever they are broken off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from postroom.adapters.errors import Unavailable
from postroom.consumers import replay
from postroom.consumers.letters import Revival
from postroom.consumers.replay import Fate, Marked, Replay


class Place:
    """Letters that lie somewhere, of which no more than `room` are taken at a time, and none when there is none."""

    source, queue = "queue", "emails"

    def __init__(self, *letters: str, room: int = 1000) -> None:
        self.letters = dict.fromkeys(letters)
        self.room = room
        self.batches: list[list[str]] = []

    def put_back(self, revivals: Mapping[str, Revival]) -> Sequence[str]:
        self.batches.append([*revivals])
        there = [name for name in revivals if name in self.letters]
        went = there[: self.room]
        self.room -= len(went)
        for name in went:
            del self.letters[name]
        if there and not went:
            raise Unavailable("the queue is full")
        return went

    def meant(self, *letters: str) -> list[Marked]:
        return [_marked(self, name) for name in letters or self.letters]


def _marked(place: Any, name: str) -> Marked:
    rest = dict.fromkeys(("message_id", "job", "type", "key", "ordering_key", "digest"), "")
    return Marked(place=place, id=name, size=10, replays=0, entry=None, is_lost=False, lacking={}, **rest)


def run(meant: Sequence[Marked], told: list[int]) -> Mapping[Fate, int]:
    unused: Any = SimpleNamespace()
    return Replay(unused, unused).run(meant, progress=told.append)


@pytest.fixture(autouse=True)
def _by_threes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "BATCH", 3)


def test_letters_of_one_place_go_together_so_many_at_a_time():
    one, other, told = Place("1", "2", "3", "4"), Place("1", "2"), []
    assert run([*one.meant(), *other.meant()], told) == {Fate.REPLAYED: 6}
    assert (one.batches, other.batches, told) == ([["1", "2", "3"], ["4"]], [["1", "2"]], [3, 1, 2])


def test_large_letters_go_in_smaller_batches_and_one_that_is_too_large_alone(monkeypatch):
    monkeypatch.setattr(replay, "BATCH_BYTES", 25)
    place = Place("1", "2", "3", "4", "5")
    meant = place.meant()
    meant[3] = replace(meant[3], size=100)
    run(meant, [])
    assert place.batches == [["1", "2"], ["3"], ["4"], ["5"]]


def test_what_is_gone_is_told_as_gone():
    place, told = Place("1", "3"), []
    assert run(place.meant("1", "2", "3", "4"), told) == {Fate.REPLAYED: 2, Fate.GONE: 2}
    assert told == [2, 1, 1]


def test_what_went_before_an_outage_is_told_and_no_more():
    place, told = Place(*"12345678", room=5), []
    with pytest.raises(Unavailable, match="full"):
        run(place.meant(), told)
    assert (told, [*place.letters]) == ([3, 2], ["6", "7", "8"])
    place.room = 1000
    assert run(place.meant(*"12345678"), []) == {Fate.REPLAYED: 3, Fate.GONE: 5}
