"""From a batch of rows to the broker's answer for each, in an order that keeps every key's."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from postroom.adapters.errors import Closed, InvalidMessage, PostroomError, Unavailable
from postroom.adapters.seam import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from postroom.adapters.seam import Adapter

    from .claim import Answer, Due, Place

__all__ = ["send", "waves"]

_AWAY = (Unavailable, Closed, OSError)  # OSError: what a lost connection raises in an adapter that does not translate it


def send(adapter: Adapter, rows: Sequence[Due], go_on: Callable[[], bool] = lambda: True) -> list[Answer]:
    """Publish the rows; return an answer for each that was sent. Blocks as long as the adapter does; never raises for what an adapter raises.

    No two rows of one key are in flight together; where a batch is atomic, only in an ordered queue must they not: a refused one of them would hold
    the others. Behind a row that was not confirmed, the rest of its key is not sent; nor is anything behind a wave without any answer, or once
    `go_on` says no.
    """
    return _in_turn(adapter, waves(rows, together=adapter.capabilities.atomic_publish), go_on)


def waves(rows: Iterable[Due], *, together: bool = False) -> list[list[Due]]:
    """Split rows so that each wave has at most one of each key, and the waves have each key's in order. `together`: only if its queue is ordered."""
    result: list[list[Due]] = []
    counts: Counter[Place] = Counter()
    for row in rows:
        number = counts[row.place]
        counts[row.place] += row.ordered or not together
        if number == len(result):
            result.append([])
        result[number].append(row)
    return result


def _in_turn(adapter: Adapter, groups: Iterable[Sequence[Due]], go_on: Callable[[], bool]) -> list[Answer]:
    answers: list[Answer] = []
    stuck: set[Place] = set()
    for group in groups:
        latest = _publish(adapter, [row for row in group if row.place not in stuck], go_on)
        answers += latest
        stuck |= {row.place for row, outcome in latest if outcome.verdict is not Verdict.CONFIRMED}
        if _is_silence(latest) or not go_on():
            break
    return answers


def _is_silence(answers: Sequence[Answer]) -> bool:
    return bool(answers) and all(outcome.verdict is Verdict.UNKNOWN for _, outcome in answers)


def _publish(adapter: Adapter, rows: Sequence[Due], go_on: Callable[[], bool]) -> list[Answer]:
    try:
        return list(zip(rows, adapter.publish([row.message for row in rows]) if rows else (), strict=True))
    except _AWAY as error:
        said = str(error) if isinstance(error, PostroomError) else _said(error)
        return [(row, Outcome(Verdict.UNKNOWN, said)) for row in rows]
    except Exception as error:  # noqa: BLE001 - an adapter must not raise for a message; if it does, find out for which, and charge only that one
        if len(rows) > 1:
            return _in_turn(adapter, [[row] for row in rows], go_on)
        return [(row, Outcome(_blame(error), _said(error))) for row in rows]


def _blame(error: Exception) -> Verdict:
    return Verdict.REFUSED if isinstance(error, InvalidMessage) else Verdict.BUSY


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
