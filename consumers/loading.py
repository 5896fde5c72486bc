"""`shop:jobs` becomes the Jobs object, or one line that says in which file and line it went wrong."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from postroom.adapters.errors import ConfigurationError

from .jobs import Jobs

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["load_jobs"]


def load_jobs(application: str) -> Jobs:
    """Import the module of `module:name` and return its Jobs.

    The working directory is searched before what is installed, and behind the standard library: a `queue.py` of the application's breaks nothing
    that imports Python's own. Raises ConfigurationError for whatever keeps it from that, with file and line where there are any.
    """
    name, colon, attribute = application.partition(":")
    if not (name and colon and attribute):
        raise ConfigurationError(f"{application!r}: name a module and the Jobs in it, like shop:jobs")
    if "/" in name or name.endswith(".py"):
        raise ConfigurationError(f"{application!r}: name the module: {_module_of(name)}:{attribute}")
    return _jobs_of(_import(name), attribute)


def _module_of(path: str) -> str:
    """What a file is called where it is imported; one elsewhere must be in the working directory first."""
    parts = Path(path.removesuffix(".py")).parts
    return parts[-1] if parts[0] in {"/", ".."} else ".".join(parts)


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(_behind_the_standard_library(), here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigurationError(f"there is no module {error.name!r} in {here} or on the Python path") from None
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _behind_the_standard_library() -> int:
    library = str(Path(os.__file__).parent)
    own = [index for index, entry in enumerate(sys.path) if entry in {library, f"{library}/lib-dynload"}]
    return max(own, default=-1) + 1


def _jobs_of(module: ModuleType, attribute: str) -> Jobs:
    found = getattr(module, attribute, None)
    if isinstance(found, Jobs):
        return found
    where = module.__file__ or module.__name__
    there = ", ".join(f"{module.__name__}:{name}" for name, value in vars(module).items() if isinstance(value, Jobs))
    what = f"has no {attribute!r}" if found is None else f"{attribute!r} is of type {type(found).__name__}, not Jobs"
    raise ConfigurationError(f"{where}: {what}; {f'there is {there}' if there else 'there is no Jobs() in it'}")


def _broken(name: str, error: BaseException) -> ConfigurationError:
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    if not isinstance(error, ConfigurationError):
        return ConfigurationError(f"{_place(name, error)}: {type(error).__name__}: {said}".rstrip(": "))
    has_place = said.startswith(_file_of(name) or "\0")  # a handler that is refused names its own line
    return ConfigurationError(said if has_place else f"{_place(name, error)}: {said}")


def _place(name: str, error: BaseException) -> str:
    """File and line of the mistake: the innermost frame of the named module itself, else the innermost of all."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if frame.filename == _file_of(name)]
    last = (own or frames)[-1:]
    return f"{last[0].filename}:{last[0].lineno}" if last else name


def _file_of(name: str) -> str | None:
    with suppress(Exception):  # its parent package may be what is broken
        spec = importlib.util.find_spec(name)
        return spec.origin if spec else None
    return None
