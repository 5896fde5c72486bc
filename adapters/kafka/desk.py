"""What a consumer has read, has handed out, and has been told about it: the clients' threads bring, the caller's threads take."""

from __future__ import annotations

import logging
from collections import Counter, deque
from threading import Condition
from typing import TYPE_CHECKING

from postroom.adapters.seam import Delivery

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from postroom.adapters.errors import PostroomError
    from postroom.adapters.weights import Turns

    from .entry import Entry, Place

__all__ = ["Desk"]

_log = logging.getLogger("postroom.kafka")


class Desk:
    """All places of one consumer and all deliveries that it holds, under one lock: all but `tell` and `wake` are called with `changed` held."""

    def __init__(self, carriers: Iterable[str], turns: Turns, prefetch: int) -> None:
        self.changed = Condition()
        self.troubles: dict[str, PostroomError] = {}
        """What keeps jobs from coming, by its place: a topic, a partition `topic[0]`, a group, the servers."""
        self.tombstones = 0
        """How many records without a value were passed over."""
        self.ended = 0
        """How many deliveries have ended, acked or buried."""
        self._turns = turns
        self._prefetch = prefetch
        self._places: dict[str, deque[Place]] = {carrier: deque() for carrier in carriers}
        self._held: dict[object, Entry] = {}

    def tell(self, key: str, trouble: PostroomError) -> None:
        """It keeps jobs from coming: told once to the log, and to each `receive` until it is over."""
        if str(trouble) != str(self.troubles.get(key)):
            _log.error("%s", trouble)
        with self.changed:
            self.troubles[key] = trouble
            self.changed.notify_all()

    def wake(self) -> None:
        """Let whoever waits here look again: something outside of the books has changed."""
        with self.changed:
            self.changed.notify_all()

    def open(self, place: Place) -> None:
        """Records may come from here."""
        self._places[place.source.carrier].append(place)

    def close(self, places: Iterable[Place]) -> None:
        """These are over: what waits is dropped, what is held is lost to its holder."""
        for place in places:
            place.over = True
            self._serve_no_more(place)
        self._held = {token: entry for token, entry in self._held.items() if not entry.place.over}
        self.changed.notify_all()

    def empty(self, places: Iterable[Place]) -> None:
        """Hand out nothing more from these: they are about to go."""
        for place in places:
            self._serve_no_more(place)

    def take(self, limit: int) -> Sequence[Delivery]:
        """Hand out up to `limit`, as far as the prefetch allows."""
        taken: list[Delivery] = []
        room = min(limit, self._prefetch - len(self._held))
        while len(taken) < room and (ready := [carrier for carrier in self._places if self._turn(carrier)]):
            place = self._places[self._turns.pick(ready) if len(ready) > 1 else ready[0]][0]
            taken.append(self._hand_out(place.shelf.take()))
        if taken:
            self.changed.notify_all()  # there is room for more
        return taken

    def pick_up(self, delivery: Delivery) -> Entry | None:
        """Take a delivery back from its holder, for the one settlement that it gets; None when it is not held any more."""
        return self._held.pop(delivery.token, None)

    def hold_again(self, delivery: Delivery, entry: Entry) -> bool:
        """Give it back to its holder: its settlement did not succeed. False when it is lost meanwhile."""
        if not entry.place.over:
            self._held[delivery.token] = entry
        return not entry.place.over

    def end(self, entry: Entry, *, buried: bool = False) -> None:
        """It was acked, or `buried`: the next of its key may go."""
        self.ended += 1
        entry.place.shelf.leave(entry)
        entry.place.end(entry, buried=buried)
        self.changed.notify_all()

    def put_back(self, entry: Entry) -> None:
        """It was released: this consumer gets it again, for as long as it is the one who may have it."""
        entry.place.shelf.come_back(entry)
        self.changed.notify_all()

    def holds(self, places: Iterable[Place]) -> bool:
        """Whether a delivery of these is held."""
        among = {id(place) for place in places}
        return any(id(entry.place) in among for entry in self._held.values())

    def serving(self, carrier: str) -> int:
        """How many places of a carrier jobs may come from."""
        return len(self._places[carrier])

    @property
    def running(self) -> Counter[str]:
        """How many are held, by carrier."""
        return Counter(entry.place.source.carrier for entry in self._held.values())

    def _serve_no_more(self, place: Place) -> None:
        if place in self._places[place.source.carrier]:
            self._places[place.source.carrier].remove(place)

    def _turn(self, carrier: str) -> bool:
        """Bring the next place with something to take to the front; False when there is none."""
        places = self._places[carrier]
        for _ in range(len(places)):
            places.rotate(-1)
            if places[0].shelf.is_ready:
                return True
        return False

    def _hand_out(self, entry: Entry) -> Delivery:
        token = object()
        self._held[token] = entry
        return Delivery(message=entry.message, queue=entry.place.source.carrier, token=token, attempts=entry.attempts)
