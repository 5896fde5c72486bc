"""What a worker's log says: once, in words, and without what would act on a terminal."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from postroom.adapters.memory import Memory
from postroom.consumers import Jobs, Supervisor
from postroom.consumers.worker.marks import Marks
from support.inprocess import SOON, Office, office
from support.ledgers import database, open_ledger, start


@dataclass
class Order:
    order_id: int


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Office]:
    with office(f"sqlite:///{tmp_path / 'log.db'}", Memory()) as made:
        yield made


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level and record.name == "postroom.worker"]


def test_a_payload_that_does_not_fit_is_told_once(here: Office, caplog: pytest.LogCaptureFixture) -> None:
    @here.jobs.handler("t", queue="q")
    def handle(order: Order) -> None: ...

    here.enqueue("t", "k", {"order_id": "oops"})
    here.drain()
    [told] = lines(caplog, logging.WARNING)
    assert told.startswith("dead letter t k: given up after 1 attempt: the payload does not fit Order")


def test_s104_a_job_that_is_done_and_comes_again_alarms_nobody(here: Office, caplog: pytest.LogCaptureFixture) -> None:
    @here.jobs.handler("t", queue="q")
    def handle(payload: Any) -> None: ...

    here.publish_job("k")
    here.drain()
    here.publish_job("k", job_id="another-one")
    with caplog.at_level(logging.INFO, "postroom.worker"):
        here.drain()
    assert [line for line in lines(caplog, logging.INFO) if "acked, done before" in line] == ["t k: acked, done before"]
    assert lines(caplog, logging.WARNING) == []


def test_control_characters_of_a_handlers_error_reach_neither_log_nor_ledger(here: Office, caplog: pytest.LogCaptureFixture) -> None:
    @here.jobs.handler("t", queue="q", max_attempts=1, backoff=SOON)
    def handle(payload: Any) -> None:
        raise ValueError("\x1b[2Jgone\nERROR all is lost")

    here.enqueue("t", "k\x1b[31m")
    with caplog.at_level(logging.INFO, "postroom.worker"):
        here.drain()
    formatter = logging.Formatter("%(message)s")
    said = "\n".join(formatter.format(record) for record in caplog.records)
    assert "\x1b" not in said
    assert "t k\\x1b[31m: attempt 1 failed: ValueError: \\x1b[2Jgone\\nERROR all is lost\n" in said
    assert "Traceback" in said
    assert here.entry("k\x1b[31m").last_error == "ValueError: \\x1b[2Jgone\nERROR all is lost"


def test_of_a_child_that_left_nothing_behind_nothing_is_said_and_of_another_what_became_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    jobs = Jobs()

    @jobs.handler("send-receipt", queue="emails")
    def handle(payload: Any) -> None: ...

    engine = database(url)
    supervisor, marks = Supervisor("app:jobs", jobs, database=url, broker=url), Marks.in_memory(lanes=1, places=1)
    started = start(open_ledger(engine, "worker-1"))
    marks.start(0, 0, started.id, started.fence)
    with caplog.at_level(logging.INFO, "postroom.supervisor"):
        supervisor._abandon("worker-2", marks)  # noqa: SLF001 - as a child does at its end
        assert caplog.messages == []
        supervisor._abandon("worker-1", marks)  # noqa: SLF001 - as a child does at its end
    assert caplog.messages == ["what worker-1 left behind: deliveries handed back: 0; attempts: 1 charged"]
    supervisor._adapter.close()  # noqa: SLF001 - as at the end of its run
    supervisor._engine.dispose()  # noqa: SLF001 - as above
    engine.dispose()
