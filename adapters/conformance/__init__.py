"""The conformance suite: what every backend must do, told once.

Run it against an adapter of your own:

    from postroom.adapters import conformance

    class MyHarness(conformance.Harness):
        def adapter(self): ...
        def restart(self): ...
        def advance(self, seconds): ...

    class TestMyAdapter(conformance.Suite):
        @pytest.fixture
        def harness(self):
            return MyHarness()

The suite reads the adapter's `Capabilities` and skips only what they declare absent. It needs pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

_CHAPTERS = ("burying", "competing", "lasting", "leasing", "life", "ordering", "publishing", "stage")
pytest.register_assert_rewrite(*(f"{__name__}.{chapter}" for chapter in _CHAPTERS))  # before they are imported

from .burying import Burying  # noqa: E402
from .competing import Processes, Threads  # noqa: E402
from .harness import Harness  # noqa: E402
from .lasting import Lasting  # noqa: E402
from .leasing import Leases  # noqa: E402
from .life import Life  # noqa: E402
from .ordering import FanOut, Ordered, Priority  # noqa: E402
from .publishing import Publishing, Topology  # noqa: E402
from .stage import Stage  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Harness", "Stage", "Suite"]


class Suite(Life, Leases, Ordered, Priority, FanOut, Burying, Publishing, Topology, Threads, Processes, Lasting):
    """All of it. A subclass (or its module) has a fixture `harness` that returns a fresh `Harness`; the suite closes it."""

    @pytest.fixture
    def stage(self, harness: Harness) -> Iterator[Stage]:
        """The stage of one test."""
        stage = Stage(harness)
        yield stage
        stage.close()
        harness.close()
