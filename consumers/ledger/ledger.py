"""The ledger of one worker process: which attempt of which key may run, and how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy import Connection, Engine

    from .answers import Abandoned, Answer, Claim, Done, Finish, Result
    from .decide import Mark

__all__ = ["Ledger"]


class Ledger:
    """Thread-safe. `worker` names this process and no other, ever; `lease` is in seconds."""

    def __init__(self, engine: Engine, *, worker: str, lease: float, native_delay: bool) -> None:
        raise NotImplementedError

    def round(self, finishes: Sequence[Finish], claims: Sequence[Claim]) -> tuple[Sequence[Result], Sequence[Answer]]:
        """Store all finishes, then answer all claims, in one transaction."""
        raise NotImplementedError

    def finish_within(self, connection: Connection, finish: Done) -> None:
        """Store `finish` in the caller's transaction."""
        raise NotImplementedError

    def renew(self) -> Collection[tuple[int, int]]:
        """Extend the lease of all that this process runs; return the (id, fence) pairs that it no longer holds."""
        raise NotImplementedError

    def abandon(self, worker: str, marks: Mapping[tuple[int, int], Mark]) -> Abandoned:
        """Give up the attempts of a process that is known to be dead."""
        raise NotImplementedError

    def retry(self, row_id: int, *, replays: int) -> int | None:
        """An operator's replay."""
        raise NotImplementedError

    def purge(self, *, older_than: float, limit: int = 1000) -> int:
        """Remove up to `limit` ended rows."""
        raise NotImplementedError
