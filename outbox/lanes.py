"""Leased lanes: how many relays share one outbox, and yet no ordering key is ever in the hands of two.

Each row is in one of 64 lanes, by the hash of its ordering key. A relay sends the rows of the lanes it has leased, and takes no more than its fair
share of them. A lane's token grows whenever the lane changes hands, and every new token is larger than all tokens before it; so one number, the
newest token among a relay's lanes, tells a lane that it has held all along from one that it lost and took again.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from sqlalchemy import BindParameter, String, bindparam, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from postroom.adapters.sql.engine import reading
from postroom.adapters.sql.transaction import transact
from postroom.adapters.sql.types import now

from .tables import LANES, lanes, relays

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection, Engine, Row

__all__ = ["Lanes", "Tenure", "give_up"]

_ME: BindParameter[str] = bindparam("me", type_=String)
_UNTIL = now() + bindparam("lease")

_ALIVE = update(relays).where(relays.c.id == _ME).values(until=_UNTIL)
_JOIN = insert(relays).values(id=_ME, until=_UNTIL)
_LEAVE = delete(relays).where(relays.c.id == _ME)

_LIVE = select(func.count()).select_from(relays).where(relays.c.until >= now()).scalar_subquery()
_VIEW = select(lanes.c.lane, lanes.c.token, lanes.c.relay, (lanes.c.until < now()).label("expired"), _LIVE.label("live")).order_by(lanes.c.lane)
_TURN = select(lanes.c.lane).where(lanes.c.lane == 0).with_for_update()  # those who take and give do so one after the other
_RENEW = update(lanes).where(lanes.c.relay == _ME).values(until=_UNTIL)
_NAMED = lanes.c.lane.in_(bindparam("lanes", expanding=True))
_FREE = or_(lanes.c.relay.is_(None), lanes.c.until < now())
_TAKE = update(lanes).where(_NAMED, _FREE, lanes.c.token < bindparam("fence")).values(relay=_ME, token=bindparam("fence"), until=_UNTIL)
_GIVE = update(lanes).where(_NAMED, lanes.c.relay == _ME).values(relay=None, until=0.0)
_GIVE_ALL = update(lanes).where(lanes.c.relay == _ME).values(relay=None, until=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenure:
    """The lanes that one relay holds at one time. `fence` is the newest token among them: a lane with a newer one has been in other hands."""

    relay: str
    lanes: tuple[int, ...] = ()
    fence: int = 0

    @property
    def whole(self) -> bool:
        """Whether no other relay holds any."""
        return len(self.lanes) == LANES


class Lanes:
    """One relay's hold on its lanes. `name` must be unique among all relays, ever; `lease` is in seconds by the database's clock.

    `clock` only measures how long ago this object renewed. All methods but `renew` are for the relay's own thread; all raise Unavailable.
    """

    def __init__(self, engine: Engine, *, name: str, lease: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._lease = lease
        self._clock = clock
        self._renewing = Lock()
        self._renewed_at = self._looked_at = -math.inf
        self._tenure = Tenure(relay=name)

    def look(self) -> Tenure:
        """Renew when a third of the lease is over, give back what is above this relay's share, take what is free below it.

        Only between rounds: no message of these lanes may be in flight. While all lanes are held and fresh it asks nothing of the database.
        """
        if self._tenure.whole and not self._is_time(self._looked_at):
            return self._tenure
        if self._is_time(self._renewed_at):
            self.renew()
        self._looked_at = self._clock()
        view = self._view()
        if view.surplus > 0 or (view.surplus < 0 and view.free):
            transact(self._engine, self._balance)
            view = self._view()
        self._tenure = view.tenure
        return self._tenure

    def renew(self) -> None:
        """Tell the others that this relay is alive and keeps its lanes for one more lease. Any thread may call it, also during a round."""
        with self._renewing:
            began = self._clock()
            transact(self._engine, self._beat)
            self._renewed_at = began

    def doubt(self) -> None:
        """Something showed that lanes are lost: the next `look` asks the database."""
        self._renewed_at = self._looked_at = -math.inf

    def release(self) -> None:
        """Give all back, so that others need not wait for the lease."""
        self._tenure = Tenure(relay=self._tenure.relay)
        self.doubt()
        transact(self._engine, self._leave)

    def _is_time(self, last: float) -> bool:
        return self._clock() - last >= self._lease / 3

    def _view(self) -> _View:
        view = transact(reading(self._engine), self._read)
        if len(view.rows) == LANES:
            return view
        _create_missing(self._engine, [row.lane for row in view.rows])
        return transact(reading(self._engine), self._read)

    def _read(self, connection: Connection) -> _View:
        return _View(relay=self._tenure.relay, rows=connection.execute(_VIEW).all())

    def _balance(self, connection: Connection) -> None:
        connection.execute(_TURN)
        view = self._read(connection)
        if view.surplus > 0:
            connection.execute(_GIVE, {"me": view.relay, "lanes": view.mine[-view.surplus :]})
        elif view.surplus < 0 and view.free:
            wanted = {"lanes": view.free[: -view.surplus], "fence": view.newest + 1}
            connection.execute(_TAKE, {"me": view.relay, "lease": self._lease, **wanted})

    def _beat(self, connection: Connection) -> None:
        values = {"me": self._tenure.relay, "lease": self._lease}
        if connection.execute(_ALIVE, values).rowcount == 0:
            connection.execute(_JOIN, values)
        connection.execute(_RENEW, values)

    def _leave(self, connection: Connection) -> None:
        _part(connection, self._tenure.relay)


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """The lanes as the database shows them to one relay."""

    relay: str
    rows: Sequence[Row[Any]]

    @property
    def tenure(self) -> Tenure:
        mine = [row for row in self.rows if row.relay == self.relay]
        return Tenure(relay=self.relay, lanes=tuple(row.lane for row in mine), fence=max((row.token for row in mine), default=0))

    @property
    def mine(self) -> list[int]:
        return list(self.tenure.lanes)

    @property
    def free(self) -> list[int]:
        return [row.lane for row in self.rows if row.relay is None or (row.expired and row.relay != self.relay)]

    @property
    def newest(self) -> int:
        return max((row.token for row in self.rows), default=0)

    @property
    def surplus(self) -> int:
        """How many lanes it holds above its fair share; below it when negative."""
        live = max((row.live for row in self.rows), default=1)
        return len(self.tenure.lanes) - math.ceil(LANES / max(live, 1))


def give_up(engine: Engine, relay: str) -> None:
    """Give back all lanes of the relay of this name, for it is known to be dead: others need not wait for its lease. Safe to repeat.

    Raises Unavailable.
    """
    transact(engine, lambda connection: _part(connection, relay))


def _part(connection: Connection, relay: str) -> None:
    connection.execute(_GIVE_ALL, {"me": relay})
    connection.execute(_LEAVE, {"me": relay})


def _create_missing(engine: Engine, present: Sequence[int]) -> None:
    """Add the lanes that are not there yet; when several relays do it at once, one of them does it for all."""
    missing = [{"lane": lane, "token": 0, "until": 0.0} for lane in range(LANES) if lane not in present]
    try:
        transact(engine, lambda connection: connection.execute(insert(lanes).values(missing)))
    except IntegrityError:
        return
