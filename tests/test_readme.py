"""The README is true: its example is the one that is shipped, its commands do what it prints, its proofs exist."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from postroom.adapters import connect
from postroom.consumers import WorkerSettings
from postroom.consumers.cli.app import COMMANDS
from postroom.consumers.cli.app import postroom as command
from postroom.consumers.cli.exits import MEANINGS
from postroom.consumers.demo import shop
from postroom.consumers.policy import Backoff
from postroom.outbox import RelayOptions
from postroom.outbox.payload import MAX_PAYLOAD
from support.command import environment
from support.everywhere import BROKERS, broker_url
from support.workers import eventually

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SOURCES = Path(shop.__file__).parents[2]
"""Where the three packages are: in the repository, or installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command of a console block, and the lines that it is said to print; `…` stands for anything."""

    command: str
    prints: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        return int(found[1]) if (found := re.search(r"# exit code (\d+)", self.command)) else 0

    @property
    def pattern(self) -> str:
        lines = ["[^\n]*".join(map(_with_any_blanks, line.split("…"))) for line in self.prints]
        return "".join(rf"{line}\s*\n" for line in lines)


def _with_any_blanks(text: str) -> str:
    """Columns are as wide as what is in them, which is not always the same."""
    return re.sub(r"(?:\\ )+", r" +", re.escape(text))


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def steps(block: str) -> list[Step]:
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [Step(command=part.splitlines()[0], prints=tuple(part.splitlines()[1:])) for part in parts]


@pytest.fixture
def user(tmp_path: Path) -> dict[str, str]:
    """The environment of one who has installed Postroom: `postroom` and `python` are on the path."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, arguments in (("postroom", " -P -m postroom.consumers.cli"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable}{arguments} "$@"\n')
        (programs / name).chmod(0o755)
    return environment({"PATH": f"{programs}:{os.environ['PATH']}"})


def test_the_example_is_the_one_that_is_shipped():
    assert blocks("python")[0] == Path(shop.__file__).read_text()


def test_who_has_only_the_readme_sees_what_it_prints(user: dict[str, str], tmp_path: Path):
    (tmp_path / "shop.py").write_text(blocks("python")[0])
    first, *others = blocks("console")
    assert [step.command.split()[1] for step in steps(first)] == ["demo", "test"]  # of make, which have tests of their own
    for step in [step for block in others for step in steps(block)]:
        ended = subprocess.run(["bash", "-c", step.command], cwd=tmp_path, env=user, check=False, capture_output=True, text=True)
        assert ended.returncode == step.exit_code, (step, ended.stderr)
        if step.prints:
            assert re.fullmatch(step.pattern, ended.stdout), (step, ended.stdout)


PLACE = """
from orders import Order, place
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
with Session(create_engine("sqlite:///postroom.db")) as session, session.begin():
    place(session, Order(4711, 8))
    place(session, Order(4712, 0))
"""


def test_its_queues_topics_and_priorities_work_and_so_does_its_worker(user: dict[str, str], tmp_path: Path):
    for source in blocks("python")[1:]:
        (tmp_path / re.match(r"# (\w+\.py): ", source)[1]).write_text(source)
    (tmp_path / "place.py").write_text(PLACE)
    for line in (["postroom", "schema", "create"], ["python", "place.py"], ["python", "theirs.py"]):
        subprocess.run(line, cwd=tmp_path, env=user, check=True, capture_output=True)
    with subprocess.Popen(["python", "worker.py"], cwd=tmp_path, env=user) as worker:
        eventually(lambda: len(found := told(user, tmp_path)) == 9 and not any(status in {"pending", "running"} for status in found.values()))
        worker.terminate()
    failed = {name for name, status in told(user, tmp_path).items() if status != "done"}
    assert failed == {("order-4712", "placed", "orders.billing")}


def told(user: dict[str, str], folder: Path) -> dict[tuple[str, str, str], str]:
    """The status of each job, by key, type and queue."""
    lines = [
        line
        for key in ("order-4711", "order-4712")
        for line in subprocess.run(["postroom", "status", key, "--json"], cwd=folder, env=user, check=True, capture_output=True).stdout.splitlines()
    ]
    return {(job["key"], job["type"], job["queue"]): job["status"] for job in map(json.loads, lines)}


@pytest.mark.parametrize("kind", ["memory", *BROKERS])
def test_its_swap_test_sees_the_same_outcome_on_every_broker(request: pytest.FixtureRequest, kind: str, user: dict[str, str], tmp_path: Path):
    (swap,) = [source for source in blocks("python") if source.startswith("# test_swap.py: ")]
    (tmp_path / "test_swap.py").write_text(swap)
    url = "memory:" if kind == "memory" else broker_url(request, kind)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "test_swap.py"]
    ended = subprocess.run(command, cwd=tmp_path, env={**user, "BROKERS": url}, check=False, capture_output=True, text=True)
    assert "1 passed" in ended.stdout, ended.stdout
    assert ended.returncode == 0


@pytest.mark.parametrize("name", ["mapped", "events"])
def test_the_examples_of_mappers_are_those_that_are_tested(name: str):
    assert f"```python\n{(ROOT / 'tests/apps' / name).with_suffix('.py').read_text()}```" in (ROOT / "consumers/README.md").read_text()


def test_its_exit_codes_are_those_of_the_help():
    assert dict(re.findall(r"^\| ([\d, ]+) \| ([^|]+) \|$", README, re.MULTILINE)) == MEANINGS


PROOF = r'\]\(([\w/]+\.py) "(test_\w+)"\)'


def test_every_proof_that_it_names_exists():
    proofs = re.findall(PROOF, README)
    assert len(proofs) > 10
    missing = [f"{file}::{name}" for file, name in proofs if f"def {name}(" not in _source(file)]
    assert missing == []


def _source(file: str) -> str:
    return ((ROOT if file.startswith("tests/") else SOURCES) / file).read_text()


RUNS_ON = {
    "memory": (r"\[memory|TestMemory::", "memory:"),
    "SQLite": (r"sqlite", "sqlite:///x.db"),
    "PostgreSQL": (r"postgresql", "postgresql://host/x"),
    "MariaDB": (r"mariadb", "mariadb://host/x"),
    "RabbitMQ": (r"rabbitmq\b|test_rabbitmq_", "amqp://host"),
    "Kafka": (r"kafka\b(?![ -]share)|\[classic", "kafka://host"),
    "Kafka, share": (r"kafka[ -]?share|\[share", "kafka://host?mode=share"),
}
"""By column: how a test's name tells that it runs there, and a URL of it, to ask for its capabilities."""


def promises() -> list[dict[str, str]]:
    """The rows of the table."""
    (table,) = re.findall(r"^\| promise \|.*\n\|[-|]+\n((?:\|.*\n)+)", README, re.MULTILINE)
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]
    return [dict(zip(["promise", *RUNS_ON, "proof"], row, strict=True)) for row in rows]


@pytest.fixture(scope="module")
def collected() -> list[str]:
    """The names of all tests that are there, with their parameters."""
    files = {"tests/test_conformance.py", *(file for file, _ in re.findall(PROOF, README) if file.startswith("tests/"))}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", *sorted(files)]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.parametrize("row", promises(), ids=lambda row: row["promise"])
def test_every_mark_of_a_promise_is_a_test_that_runs_there(row: dict[str, str], collected: list[str]):
    ((file, name),) = re.findall(PROOF, row["proof"])
    runs = [line for line in collected if re.search(rf"::{name}\b", line)]
    asked = re.findall(r'"(\w+)"', found[1]) if (found := re.search(rf"def {name}\(.*?\n\s*stage\.needs\((.*?)\)", _source(file))) else []
    there = {column for column, (pattern, url) in RUNS_ON.items() if _runs(runs, pattern) and _has(url, asked)}
    marked = {column for column in RUNS_ON if row[column] == "✓"}
    brokers = {"RabbitMQ", "Kafka", "Kafka, share"}
    assert marked & brokers == there & brokers
    assert marked <= there or not there  # a test without parameters, of what has nothing to do with a database


def _runs(runs: list[str], pattern: str) -> bool:
    return any(re.search(pattern, line, re.IGNORECASE) for line in runs)


def _has(url: str, capabilities: list[str]) -> bool:
    adapter = connect(url)
    has = all(getattr(adapter.capabilities, name) for name in capabilities)
    adapter.close()
    return has


def test_every_subcommand_and_option_that_it_names_exists():
    for name in COMMANDS:
        assert f"| `postroom {name}" in README
    for usage in re.findall(r"`postroom (\w+)([^`]*)`", README):
        helped = CliRunner().invoke(command, [usage[0], *_group(*usage), "--help"]).output
        for option in re.findall(r"--[a-z-]+", usage[1]):
            assert option.rstrip("-") in helped, usage


def _group(name: str, rest: str) -> list[str]:
    """The subcommand of a subcommand, where it is one."""
    return [first] if name in {"dead", "schema"} and (first := rest.strip(" ,.").split(" ")[0]).isalpha() else []


def test_the_defaults_that_it_tells_are_those_of_the_code():
    worker, relay, backoff = WorkerSettings(), RelayOptions(), Backoff()
    rows = dict(re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", README, re.MULTILINE))
    assert rows["`concurrency`"] == f"`{worker.concurrency}`"
    assert rows["`grace`"] == f"`{worker.grace}`"
    assert rows["`prefetch`"] == f"`{worker.prefetch}`"
    assert rows["`poll_min`, `poll_max`"] == f"`{relay.poll_min}`, `{relay.poll_max}`"
    assert rows["`batch`, `batch_bytes`"] == f"`{relay.batch}`, {relay.batch_bytes // 2**20} MiB"
    assert rows["`max_payload`"] == f"{MAX_PAYLOAD:,}"
    assert rows["`backoff`"] == f"`Backoff(first={backoff.first:g}, factor={backoff.factor:g}, cap={backoff.cap:g}, jitter={backoff.jitter:g})`"
    assert worker.retention == relay.retention == 7 * 86400
