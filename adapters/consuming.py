"""What the consumers of every backend refuse, in the same words."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .errors import Closed, LeaseLost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .seam import Delivery

__all__ = ["lease_lost", "require_held", "require_usable"]


def lease_lost(lost: Sequence[Delivery]) -> LeaseLost:
    """Return the error that names the deliveries which could not be settled."""
    names = ", ".join(delivery.message.id for delivery in lost)
    return LeaseLost(f"no longer held by this consumer: {names}", lost)


def require_held(lost: Sequence[Delivery]) -> None:
    """Raise LeaseLost when there are any that could not be settled."""
    if lost:
        raise lease_lost(lost)


def require_usable(*, closed: bool, pid: int) -> None:
    """Raise Closed after close(), and in another process than `pid`, which made the consumer: connections don't survive a fork."""
    if closed:
        raise Closed("this consumer is closed")
    if pid != os.getpid():
        raise Closed(f"this consumer belongs to process {pid}: a forked child must call consume() itself")
