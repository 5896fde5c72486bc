"""Which jobs the messages of other producers are that lie among the dead letters: their mapper is not at hand there, but the ledger knows the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import bindparam, select

from postroom.adapters.sql.engine import reading
from postroom.adapters.sql.transaction import translated
from postroom.outbox.envelope import RESERVED, Envelope, is_foreign
from postroom.outbox.tables import holdups

from .entries import of_job
from .mapping import job_id, ordering_key_of, origin_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy import Engine

    from postroom.adapters.seam import Message

    from .ledger.entry import Entry

__all__ = ["recognised"]

_HELD_UP = select(holdups.c.job, holdups.c.ordering_key).where(holdups.c.job.in_(bindparam("jobs", expanding=True)))


def recognised(engine: Engine, queue: str, messages: Sequence[Message]) -> Mapping[str, Envelope]:
    """The envelopes, by message id, of those messages from carrier `queue` that have none and that a worker has begun: as its mapper made them."""
    foreign = {job_id(message.id): message for message in messages if is_foreign(message)}
    if not foreign:
        return {}
    entries = [(message, entry) for job, message in foreign.items() if (entry := _only(of_job(engine, job), queue))]
    keys = _ordering_keys(engine, [entry.job_id for _, entry in entries])
    return {message.id: _envelope(message, entry, keys.get(entry.job_id)) for message, entry in entries}


def _only(entries: Sequence[Entry], queue: str) -> Entry | None:
    same = [entry for entry in entries if entry.queue == queue] or entries
    return same[0] if len(same) == 1 else None


def _ordering_keys(engine: Engine, jobs: Collection[str]) -> Mapping[str, str]:
    """Of the jobs that hold up others: a mapper may have given them an ordering key that their message does not tell."""
    if not jobs:
        return {}
    with translated(engine), reading(engine).connect() as connection:
        return {row.job: row.ordering_key for row in connection.execute(_HELD_UP, {"jobs": list(jobs)})}


def _envelope(message: Message, entry: Entry, ordering_key: str | None) -> Envelope:
    return Envelope(
        id=entry.job_id,
        type=entry.type,
        key=entry.key,
        ordering_key=ordering_key or ordering_key_of(message) or entry.key,
        queue=message.queue,
        enqueued_at=entry.enqueued_at,
        copy=entry.copy,
        replays=entry.replays,
        headers={name: value for name, value in message.headers.items() if not name.startswith(RESERVED)},
        mapped=entry.digest,
        origin=origin_of(message),
    )
