"""Every error Postroom raises, in one small tree.

    PostroomError
    ├── ConfigurationError (ValueError)   the caller's mistake; nothing was done            exit 2
    │   ├── UnknownScheme                 no backend answers to this URL
    │   ├── MissingExtra                  the client library of this backend is not installed
    │   └── TopologyMismatch              a queue exists with other arguments
    ├── Unavailable                       database or broker can't be reached now          exit 3
    │   ├── AccessDenied                  it answered, and refused the credentials
    │   └── SchemaDrift                   it answered, but tables or columns are missing
    ├── InvalidMessage (ValueError)       a message that could never travel; nothing was written
    │   └── Undecodable                   a message arrived that is not what Postroom sends
    ├── IllegalTransition                 the state machine has no such arrow; nothing changed
    │   └── LeaseLost                     the token is not the holder's; nothing changed
    └── Closed                            the object was used after its close()

`retryable` tells a caller with no further knowledge whether the same call may succeed later.
Messages name the value and the remedy, and never hold a secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .seam import Delivery

__all__ = [
    "AccessDenied",
    "Closed",
    "ConfigurationError",
    "IllegalTransition",
    "InvalidMessage",
    "LeaseLost",
    "MissingExtra",
    "PostroomError",
    "SchemaDrift",
    "TopologyMismatch",
    "Unavailable",
    "Undecodable",
    "UnknownScheme",
]


class PostroomError(Exception):
    """The root: `except PostroomError` catches all that Postroom raises on purpose."""

    retryable: ClassVar[bool] = False


class ConfigurationError(PostroomError, ValueError):
    """An option, URL or declaration that can't work; raised before anything is done."""


class UnknownScheme(ConfigurationError):
    """No backend answers to the scheme of this URL."""


class MissingExtra(ConfigurationError):
    """The client library for this backend is not installed; the message names the extra."""


class TopologyMismatch(ConfigurationError):
    """A queue exists with other arguments; the message names queue, argument, expected and actual."""


class Unavailable(PostroomError):
    """A database or broker can't be reached or does not answer in time."""

    retryable: ClassVar[bool] = True


class AccessDenied(Unavailable):
    """The server answered and refused the credentials, or the right to do this."""

    retryable: ClassVar[bool] = False


class SchemaDrift(Unavailable):
    """Tables or columns are missing or differ; the message names each and the command that mends it."""

    retryable: ClassVar[bool] = False


class InvalidMessage(PostroomError, ValueError):
    """A payload, key or header that could never travel; the message starts with the path of the value."""


class Undecodable(InvalidMessage):
    """A message that arrived can't be read: foreign headers, or a body that is not strict JSON. It is for the dead letters, as it is."""


class IllegalTransition(PostroomError):
    """The state machine has no such arrow from the job's present status; nothing changed."""


class LeaseLost(IllegalTransition):
    """The token is not the holder's any more (expired, taken over, settled already); nothing changed.

    Raised by a batch too: `lost` lists the deliveries it could not settle, all others of the batch are settled.
    """

    def __init__(self, message: str, lost: Sequence[Delivery] = ()) -> None:
        super().__init__(message)
        self.lost = tuple(lost)


class Closed(PostroomError):
    """The object was used after its close()."""
