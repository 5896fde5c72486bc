"""URLs as people write them, and as they may be shown: never with the secret."""

from __future__ import annotations

import re

__all__ = ["redact", "scheme_of"]

_PASSWORD = re.compile(r"(?<=://)([^/\s:]*):\S*@")  # up to the last @: a password may hold / ? # @ though it should not; rather hide too much
_SECRET_OPTION = re.compile(
    r"((?:^|[?&;\s])[^=&;?\s]*(?:password|passwd|pwd|secret|token|passphrase|api_?key|key\.pem)[^=&;?\s]*=)[^&\s]*", re.IGNORECASE
)


def redact(text: str) -> str:
    """Return `text` with the password of every URL in it, and every secret option, replaced by `***`."""
    return _SECRET_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))


def scheme_of(url: str) -> str:
    """The part before the colon, without a driver: `postgresql` for `postgresql+psycopg://...`, nothing where there is no colon.

    Plain text work, because parsers of URLs quote the password in their own errors.
    """
    scheme, colon, _ = url.partition(":")
    return scheme.partition("+")[0].lower() if colon else ""
