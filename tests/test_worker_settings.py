"""What a worker is told to do, and which settings are refused."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.adapters.errors import ConfigurationError
from postroom.adapters.seam import Queue
from postroom.consumers import Backoff, Context, WorkerSettings
from postroom.outbox import Outbox
from postroom.outbox.options import RelayOptions
from support.inprocess import Office


def test_a_worker_may_work_on_some_of_its_queues_only(here: Office) -> None:
    done: list[str] = []
    for name in ("q", "other"):

        @here.jobs.handler(name, queue=name)
        def handle(payload: Any, context: Context) -> None:
            done.append(context.job.queue)

    here.adapter.ensure(list(here.jobs.queues.values()))
    here.enqueue("q", "1", queue="q")
    with here.engine.begin() as connection:
        Outbox(queue="other").enqueue(connection, "other", {}, key="2")
    here.drain(queues=("other",))
    assert done == ["other"]


def test_a_worker_without_handlers_is_refused(here: Office) -> None:
    with pytest.raises(ConfigurationError, match="no handler"):
        here.worker()


@pytest.mark.parametrize("settings", [{"lease": 1.0, "beat": 1.0}, {"lease": 30.0, "beat": 10.5}, {"lease": 0.0}, {"concurrency": 0}])
def test_s113_a_beat_that_is_slower_than_a_third_of_the_lease_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        WorkerSettings(**settings)  # type: ignore[arg-type]


def test_s113_a_beat_that_is_too_slow_for_the_lease_of_a_queue_is_refused_too(here: Office) -> None:
    @here.jobs.handler("t", queue=Queue(name="q", lease=3.0))
    def handle(payload: Any) -> None: ...

    with pytest.raises(ConfigurationError, match=r"beat 2.0 s is too slow for a lease of 3.0 s: at most a third of it, 1 s"):
        here.worker(lease=30.0, beat=2.0)


def test_s095_a_retention_shorter_than_the_longest_way_back_is_refused(here: Office) -> None:
    @here.jobs.handler("t", queue="q", max_attempts=11, backoff=Backoff(first=3600, factor=1, cap=3600))
    def handle(payload: Any) -> None: ...

    relay = RelayOptions(retention=60.0)
    with pytest.raises(ConfigurationError, match="36000 s"):
        here.worker(retention=35_999.0, relay=relay)
    with pytest.raises(ConfigurationError, match="604800 s"):
        here.worker(retention=36_000.0, relay=RelayOptions())
    here.worker(retention=36_000.0, relay=relay)
