"""The command's frame: help, options, exit codes, and what a user's mistake gets."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from postroom.adapters.errors import AccessDenied, ConfigurationError, InvalidMessage, LeaseLost, SchemaDrift, Unavailable
from postroom.consumers.cli.app import COMMANDS
from postroom.consumers.cli.app import postroom as command
from postroom.consumers.cli.exits import MEANINGS, exit_code
from postroom.consumers.cli.options import Settings, connections, duration
from postroom.consumers.cli.output import ago, moment, table, visible
from postroom.consumers.loading import load_jobs
from support.command import COMMAND, postroom

SUBCOMMANDS = {"dead": ["list", "show", "replay", "discard"], "schema": ["create", "check", "dump"]}
ALL = [(name, *further) for name in COMMANDS for further in [(), *((sub,) for sub in SUBCOMMANDS.get(name, []))]]


@pytest.mark.parametrize("name", ALL, ids=" ".join)
def test_every_subcommand_has_help_with_what_it_does_and_an_example(name: tuple[str, ...]):
    answer = CliRunner().invoke(command, [*name, "--help"], prog_name="postroom")
    assert answer.exit_code == 0
    assert f"Usage: postroom {' '.join(name)}" in answer.output
    assert re.search(rf"^ +Examples?:\n +postroom {' '.join(name)}", answer.output, re.MULTILINE)


def test_the_table_of_subcommands_with_subcommands_is_whole():
    for name, further in SUBCOMMANDS.items():
        assert sorted(importlib.import_module(f"postroom.consumers.cli.{name}").command.commands) == sorted(further)


def test_the_help_tells_every_exit_code():
    said = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    assert all(f"{code} {meaning}" in said for code, meaning in MEANINGS.items())


WRONG = {
    "frobnicate": "postroom: No such command 'frobnicate'; `postroom --help` has examples",
    "work": "postroom: Missing argument 'MODULE:JOBS'; `postroom work --help` has examples",
    "dead list --source x": "postroom: Invalid value for '--source': 'x' is not one of 'queue', 'outbox', 'ledger'; `postroom dead list --help` has",
    "stats --jsn": "postroom: No such option '--jsn'",
    "enqueue t --queue q --priority high": "postroom: --priority needs --app: which priorities a queue has, and where their jobs are, stands in its",
}
EMPTY = [
    "--broker= stats",
    "--database= stats",
    "stats --broker=",
    "stats --database=",
    "stats --app=",
    "work shop:jobs --queues=",
    "work shop:jobs --queues=,",
]


@pytest.mark.parametrize(("arguments", "said"), WRONG.items())
def test_wrong_usage_is_told_in_one_line(arguments: str, said: str, tmp_path: Path):
    answer = postroom(*arguments.split(), cwd=tmp_path)
    assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (2, "", 1)
    assert answer.stderr.startswith(said)


@pytest.mark.parametrize("arguments", EMPTY)
def test_an_empty_value_is_no_default_and_the_option_is_named(arguments: str, tmp_path: Path):
    answer = postroom(*arguments.split(), cwd=tmp_path)
    (option,) = re.findall(r"(--\w+)=", arguments)
    assert (answer.returncode, answer.stderr.count("\n")) == (2, 1)
    assert answer.stderr.startswith(f"postroom: Invalid value for '{option}': it is empty; leave the option out for its default")


def test_an_empty_variable_is_one_that_is_not_set(tmp_path: Path):
    answer = postroom("stats", cwd=tmp_path, POSTROOM_DATABASE="", POSTROOM_BROKER="")
    assert "sqlite:///postroom.db: there is no such file" in answer.stderr


def test_the_first_page_of_help_lists_every_subcommand_without_importing_one():
    program = "import sys; sys.argv[1:] = ['--help']\nfrom postroom.consumers.cli import main\ntry: main()\nfinally: print(sorted(sys.modules))"
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert all(f"  {name} " in said for name in COMMANDS)
    assert "sqlalchemy" not in said
    assert "'rich'" not in said


@pytest.mark.parametrize("name", COMMANDS)
def test_no_subcommand_imports_rich_before_it_draws_on_a_terminal(name: str):
    program = f"import sys, postroom.consumers.cli.{name}; print('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("x"), 2),
        (InvalidMessage("x"), 2),
        (click.UsageError("x"), 2),
        (Unavailable("x"), 3),
        (AccessDenied("x"), 3),
        (SchemaDrift("x"), 3),
        (LeaseLost("x"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_branch_of_the_error_tree_has_its_exit_code(error: BaseException, code: int):
    def run():
        raise error

    assert exit_code(run) == code


def test_an_error_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]):
    def run():
        raise Unavailable("sqlite:///x.db: disk I/O error")

    exit_code(run)
    assert capsys.readouterr().err == "postroom: sqlite:///x.db: disk I/O error\n"


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        exit_code(lambda: 1 / 0)


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as nobody:
        ended = subprocess.run([*COMMAND, "--help"], stdout=nobody, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("written", "seconds"), [("500ms", 0.5), ("10s", 10), ("5m", 300), ("2h", 7200), ("1d", 86400), ("1h30m", 5400), ("1.5s", 1.5)]
)
def test_durations_are_written_with_their_unit(written: str, seconds: float):
    assert duration(written) == seconds


@pytest.mark.parametrize("written", ["10", "", "s", "ten seconds", "-5s", "5 s", "5x", "1h 30m"])
def test_a_bad_duration_is_refused_with_an_example(written: str):
    with pytest.raises(click.BadParameter, match="write it like 500ms, 10s"):
        duration(written)


@click.command()
@connections
def where(settings: Settings):
    click.echo(json.dumps([settings.database_url, settings.broker_url]))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.import_module("postroom.consumers.cli.status"), "command", where)
    monkeypatch.delenv("POSTROOM_DATABASE", raising=False)
    monkeypatch.delenv("POSTROOM_BROKER", raising=False)

    def ask(*arguments: str, **variables: str) -> list[str]:
        return json.loads(CliRunner(env=variables).invoke(command, arguments, catch_exceptions=False).output)

    return ask


def test_without_a_word_both_are_one_file_here(asked):
    assert asked("status") == ["sqlite:///postroom.db"] * 2


def test_the_broker_is_the_database_unless_it_is_named(asked):
    assert asked("--database", "sqlite:///a.db", "status") == ["sqlite:///a.db"] * 2
    assert asked("--database", "sqlite:///a.db", "--broker", "memory:", "status") == ["sqlite:///a.db", "memory:"]


def test_the_environment_names_them_too(asked):
    assert asked("status", POSTROOM_DATABASE="sqlite:///a.db", POSTROOM_BROKER="memory:") == ["sqlite:///a.db", "memory:"]


def test_what_stands_behind_the_subcommand_wins(asked):
    assert asked("--database", "sqlite:///a.db", "status", "--database", "sqlite:///b.db", POSTROOM_BROKER="memory:") == ["sqlite:///b.db", "memory:"]


def test_the_module_is_found_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_shop.py").write_text("from postroom.consumers import Jobs\njobs = Jobs()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert type(load_jobs("my_shop:jobs")).__name__ == "Jobs"


MISTAKES = {
    "no such module": ("", "nowhere:jobs", "there is no module 'nowhere' in {here} or on the Python path"),
    "a file": ("", "./bad.py:jobs", "'./bad.py:jobs': name the module: bad:jobs"),
    "a path": ("", "./bad:jobs", "'./bad:jobs': name the module: bad:jobs"),
    "a file in a folder": ("", "apps/bad.py:jobs", "'apps/bad.py:jobs': name the module: apps.bad:jobs"),
    "no colon": ("", "bad", "'bad': name a module and the Jobs in it, like shop:jobs"),
    "raises": ("x = 1\nraise RuntimeError('no settings')\n", "bad:jobs", "{here}/bad.py:2: RuntimeError: no settings"),
    "ends the process": ("import sys\nsys.exit(4)\n", "bad:jobs", "{here}/bad.py:2: SystemExit: 4"),
    "raises deep inside": ("import json\n\njson.loads('{{')\n", "bad:jobs", "{here}/bad.py:3: JSONDecodeError: "),
    "wrong syntax": ("x = 1\ndef f(:\n", "bad:jobs", "{here}/bad.py:2: SyntaxError: invalid syntax"),
    "misses a library": ("import not_installed_here\n", "bad:jobs", "{here}/bad.py:1: ModuleNotFoundError: No module named 'not_installed_here'"),
    "has no such name": ("from postroom.consumers import Jobs\nwork = Jobs()\n", "bad:jobs", "{here}/bad.py: has no 'jobs'; there is bad:work"),
    "is something else": ("jobs = 1\n", "bad:jobs", "{here}/bad.py: 'jobs' is of type int, not Jobs; there is no Jobs() in it"),
    "two handlers": (
        """
from postroom.consumers import Jobs
jobs = Jobs()
@jobs.handler("t", queue="q")
def a(payload: dict): pass
@jobs.handler("t", queue="q")
def b(payload: dict): pass
""",
        "bad:jobs",
        "{here}/bad.py:6",
    ),
}


@pytest.mark.parametrize(("source", "application", "said"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_in_the_application_is_told_with_file_and_line(source: str, application: str, said: str, tmp_path: Path):
    (tmp_path / "bad.py").write_text(source)
    answer = postroom("work", application, cwd=tmp_path)
    assert answer.returncode == 2
    assert said.format(here=tmp_path) in answer.stderr
    assert answer.stderr.startswith("postroom: ")
    assert answer.stderr.count("\n") == 1


def test_an_instant_in_json_is_iso_8601_in_utc():
    assert moment(1_700_000_000.25) == "2023-11-14T22:13:20.250Z"


@pytest.mark.parametrize(("seconds", "told"), [(0.2, "0s"), (4, "4s"), (125, "2m 5s"), (90061, "1d 1h"), (-3, "0s")])
def test_lengths_of_time_are_told_in_their_two_largest_units(seconds: float, told: str):
    assert ago(seconds) == told


def test_what_would_move_the_cursor_is_shown_and_blanks_stay(capsys: pytest.CaptureFixture[str]):
    table(["KEY", "ERROR"], [["two  blanks", "red \x1b[31m\nand\u202e more"]])
    assert capsys.readouterr().out.splitlines()[1] == "two  blanks  red \\x1b[31m\\nand\\u202e more"
    assert visible("a\nb\x07", keep="\n") == "a\nb\\x07"
