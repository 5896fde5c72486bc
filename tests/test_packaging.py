"""What a user installs: the built wheel, alone in an environment of its own."""

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("adapters", "outbox", "consumers")
IGNORED = shutil.ignore_patterns("__pycache__")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools leaves files of its own beside the sources, and would pick up those of an earlier build."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=IGNORED)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", built, source], check=True, capture_output=True)
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the wheel and what it depends on, without any extra."""
    return installed(f"{wheel}", tmp_path_factory.mktemp("environment"))


def installed(what: str, path: Path) -> Path:
    """A new environment with this in it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
    install = [sys.executable, "-m", "pip", "--python", path / "bin/python", "install", "--quiet", what]
    subprocess.run(install, check=True, capture_output=True)
    return path


@pytest.fixture
def python(environment: Path, tmp_path: Path) -> Callable[[str], str]:
    """Runs a program in a user's own folder and returns what it prints."""

    def run(program: str) -> str:
        command = [environment / "bin/python", "-W", "error", "-c", program]
        return subprocess.run(command, check=True, cwd=tmp_path, capture_output=True, text=True).stdout

    return run


def test_every_source_file_is_in_the_wheel(wheel: Path) -> None:
    files = [path for name in PACKAGES for path in (ROOT / name).rglob("*")]
    sources = {f"postroom/{path.relative_to(ROOT)}" for path in files if path.suffix in {".py", ".typed"}}
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if name.startswith("postroom/")} == sources


@pytest.mark.parametrize("name", PACKAGES)
def test_type_checkers_read_the_annotations_of_each_package(wheel: Path, name: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert f"postroom/{name}/py.typed" in archive.namelist()


@pytest.mark.parametrize("name", PACKAGES)
def test_each_package_imports_without_any_extra(python: Callable[[str], str], name: str) -> None:
    assert python(f"import postroom.{name}") == ""


def test_a_user_s_own_package_called_adapters_works_beside_ours(python: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "__init__.py").write_text("whose = 'mine'")
    assert python("import adapters, postroom.adapters; print(adapters.whose, postroom.adapters.__name__)") == "mine postroom.adapters\n"


CLIENTS = ["aiosqlite", "confluent_kafka", "pika", "psycopg", "pydantic", "pymysql", "rich"]


@pytest.mark.parametrize(
    ("line", "unwanted"),
    [
        ("import postroom.outbox", [*CLIENTS, "click", "postroom.consumers"]),
        ("import postroom.adapters", [*CLIENTS, "click", "sqlalchemy"]),
        ("from postroom.consumers import Context, DeadLetterOffice, Jobs, Supervisor, Worker", CLIENTS),
        ("import postroom.consumers.cli.work, postroom.consumers.cli.dead", CLIENTS),
        ("from postroom.adapters import connect; connect('sqlite:///x.db')", CLIENTS),
        ("from postroom.adapters import connect; connect('amqp://host')", ["confluent_kafka", "psycopg", "sqlalchemy"]),
        ("from postroom.adapters import connect; connect('kafka://host')", ["pika", "psycopg", "sqlalchemy"]),
    ],
)
def test_no_client_library_is_loaded_before_a_url_asks_for_it(line: str, unwanted: list[str], tmp_path: Path) -> None:
    # In this environment, where all of them are installed.
    program = f"{line}; import sys, json; print(json.dumps([name for name in {unwanted} if name in sys.modules]))"
    printed = subprocess.run([sys.executable, "-P", "-c", program], check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    assert json.loads(printed) == []


@pytest.mark.parametrize(("extra", "url"), [("rabbitmq", "amqp://user:p4ssw0rd@host"), ("kafka", "kafka://host?mode=share")])
def test_an_extra_is_all_that_its_broker_needs_and_without_it_the_message_names_it(
    wheel: Path, python: Callable[[str], str], tmp_path: Path, extra: str, url: str
) -> None:
    program = f"from postroom.adapters import connect\ntry: connect({url!r}).close()\nexcept ValueError as error: print(error)"
    said = python(program)
    assert f"pip install 'postroom[{extra}]'" in said
    assert "p4ssw0rd" not in said
    path = installed(f"{wheel}[{extra}]", tmp_path / "environment")
    assert subprocess.run([path / "bin/python", "-c", program], check=True, capture_output=True, text=True, cwd=tmp_path).stdout == ""


def test_the_command_is_installed_and_explains_itself(environment: Path) -> None:
    printed = subprocess.run([environment / "bin/postroom", "--help"], check=True, capture_output=True, text=True).stdout
    assert printed.startswith("Usage: postroom")
