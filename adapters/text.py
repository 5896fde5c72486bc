"""Text that any database will store: what a handler raised may hold anything, and saying so must not fail in its turn."""

from __future__ import annotations

__all__ = ["MAX_TEXT", "bounded", "one_line", "visible"]

MAX_TEXT = 8000
"""The most bytes of an error that are kept."""

_LAYOUT = {"\t", "\n"}
_CONTROLS = [chr(code) for code in (*range(1, 32), *range(127, 160), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))]
_SHOWN = str.maketrans({char: ascii(char)[1:-1] for char in _CONTROLS if char not in _LAYOUT} | {"\0": "\N{REPLACEMENT CHARACTER}"})
_SHOWN_IN_A_LINE = _SHOWN | str.maketrans({"\n": "\\n", "\t": "\\t"})


def bounded(text: str, limit: int = MAX_TEXT) -> str:
    """Return `text` as `visible` shows it, without lone surrogates, and cut to `limit` bytes of UTF-8, so that a status write can't fail for it."""
    encoded = visible(text[:limit]).encode(errors="replace")
    return encoded[:limit].decode(errors="ignore")


def visible(text: str) -> str:
    """Return `text` with what would act on a terminal, or hide in it, written as Python writes it; newlines and tabs stay."""
    return text.translate(_SHOWN)


def one_line(text: str) -> str:
    """Return `text` as `visible` shows it, newlines and tabs too: it can't pass for another line of a log."""
    return text.translate(_SHOWN_IN_A_LINE)
