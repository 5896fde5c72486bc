"""Every kind of broker that an application can be put on, by the URL alone."""

import pytest

__all__ = ["BROKERS", "REAL_BROKERS", "broker_url"]

REAL_BROKERS = ["rabbitmq", "kafka", "kafka-share"]

BROKERS = ["sqlite", "postgresql", "mariadb", *REAL_BROKERS]
"""Those that several processes can see; for parametrising a test."""


def broker_url(request: pytest.FixtureRequest, kind: str) -> str:
    """The URL of one of them, started or made for this test."""
    if kind == "rabbitmq":
        return request.getfixturevalue("rabbitmq_url")
    if kind.startswith("kafka"):
        mode = "?mode=share" if kind == "kafka-share" else ""
        return f"kafka://{request.getfixturevalue('kafka_bootstrap')}{mode}"
    return request.getfixturevalue(f"{kind}_database_url")
