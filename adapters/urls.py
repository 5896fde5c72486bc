"""URLs as people write them, and as they may be shown: never with the secret."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

__all__ = ["redact", "scheme_of"]

_PASSWORD = re.compile(r"(?<=://)([^/@\s:]*):[^/\s]*@")
_SECRET_OPTION = re.compile(r"([?&;][^=&\s]*(?:password|secret|token|passphrase|key\.pem)[^=&\s]*=)[^&\s]*", re.IGNORECASE)


def redact(text: str) -> str:
    """Return `text` with the password of every URL in it, and every secret option, replaced by `***`."""
    return _SECRET_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))


def scheme_of(url: str) -> str:
    """The part before the colon, without a driver: `postgresql` for `postgresql+psycopg://...`."""
    return urlsplit(url).scheme.partition("+")[0].lower()
