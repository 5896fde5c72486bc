"""One small seam, several backends behind one URL.

`connect(url)` gives an `Adapter`; what it carries, promises and raises is here. Client libraries are imported when they are needed.
"""

from .connect import connect
from .errors import (
    AccessDenied,
    Closed,
    ConfigurationError,
    IllegalTransition,
    InvalidMessage,
    LeaseLost,
    MissingExtra,
    PostroomError,
    SchemaDrift,
    TopologyMismatch,
    Unavailable,
    UnknownScheme,
)
from .seam import Adapter, Capabilities, Consumer, DeadLetter, DeadLetters, Delivery, Header, Hold, Message, Outcome, Queue, Verdict

__all__ = [
    "AccessDenied",
    "Adapter",
    "Capabilities",
    "Closed",
    "ConfigurationError",
    "Consumer",
    "DeadLetter",
    "DeadLetters",
    "Delivery",
    "Header",
    "Hold",
    "IllegalTransition",
    "InvalidMessage",
    "LeaseLost",
    "Message",
    "MissingExtra",
    "Outcome",
    "PostroomError",
    "Queue",
    "SchemaDrift",
    "TopologyMismatch",
    "Unavailable",
    "UnknownScheme",
    "Verdict",
    "connect",
]
