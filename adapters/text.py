"""Text that any database will store: what a handler raised may hold anything, and saying so must not fail in its turn."""

from __future__ import annotations

__all__ = ["MAX_TEXT", "bounded"]

MAX_TEXT = 8000
"""The most bytes of an error that are kept."""


def bounded(text: str, limit: int = MAX_TEXT) -> str:
    """Return `text` without NUL and lone surrogates, and cut to `limit` bytes of UTF-8, so that a status write can't fail for it."""
    encoded = text[:limit].replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace")
    return encoded[:limit].decode(errors="ignore")
