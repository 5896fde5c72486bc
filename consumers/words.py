"""What is said in more than one place about the same thing, in the same words."""

from __future__ import annotations

__all__ = ["conflict"]


def conflict(key: str, *, owner: str, theirs: str, ours: str) -> str:
    """Why a job can't be done whose key belongs to another: the `owner` is that job's id, the others are fingerprints of the payloads."""
    return f"conflict: key {key!r} belongs to job {owner} with payload {theirs}; this one has {ours}"
