"""URLs as people write them, and as they may be shown: never with the secret."""

from __future__ import annotations

import re

__all__ = ["PROCESS", "redact", "scheme_of"]

PROCESS = "{process}"
"""Each process of a worker reads its number in place of this in the URL of its broker: 0, 1 ...; who takes the place of a dead one has its number."""

_NO_URL = re.compile(r"(?<![^\s'\"])(//|[\w+.-]+:(?!//))\S*@")  # `amqp:/user:password@host`, or no scheme: who can say which part is secret?
_PASSWORD = re.compile(r"(?<=://)([^/\s:]*):(\S*)@([^&\s]*)")  # to the last @: a password may hold / ? # @ though it should not; rather hide too much
_NAME = r"(?:^|[?&;\s])[^=&;?\s]*(?:password|passwd|pwd|secret|token|passphrase|credential|api_?key|key\.pem)[^=&;?\s]*="
_VALUE = r"(?:'(?:[^'\\]|\\.)*'|[^&\s]*)"  # quoted, as libpq has it, it may have blanks in it
_SECRET_OPTION = re.compile(f"({_NAME}){_VALUE}", re.IGNORECASE)


def redact(text: str) -> str:
    """Return `text` with the password of every URL in it, and every secret option, replaced by `***`."""
    return _SECRET_OPTION.sub(r"\1***", _PASSWORD.sub(_without_password, _NO_URL.sub(r"\1***@", text)))


def _without_password(url: re.Match[str]) -> str:
    """What follows the last @ is shown: the host; but not where that @ may be one in a secret option."""
    user, hidden, rest = url.groups()
    return f"{user}:***@{'***' if _SECRET_OPTION.search(hidden) else rest}"


def scheme_of(url: str) -> str:
    """The part before the colon, without a driver: `postgresql` for `postgresql+psycopg://...`, nothing where there is no colon.

    Plain text work, because parsers of URLs quote the password in their own errors.
    """
    scheme, colon, _ = url.partition(":")
    return scheme.partition("+")[0].lower() if colon else ""
