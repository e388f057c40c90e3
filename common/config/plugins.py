"""Loads user functions that a configuration names as MODULE:FUNCTION: optimizer rules and schedules.

Python must find the module: in the current folder, on PYTHONPATH, or installed. Using one needs no change to this
project (docs/extend.md). TensorFlow-free, unless the loaded module imports it.
"""

import hashlib
import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.errors import UserError, near

FORM = "MODULE:FUNCTION, as mypackage.module:function"


def is_plugin(name: str) -> bool:
    """Whether a name is MODULE:FUNCTION, not one of this project's names."""
    return ":" in name


def short(name: str) -> str:
    """Returns FUNCTION for MODULE:FUNCTION, and any other name unchanged."""
    return name.rpartition(":")[2]


def check(field: str, name: str) -> None:
    """Checks that the module exists, without importing it.

    Raises UserError if the name has another form, or there is no such module.
    """
    module, _, function = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), function)):
        raise UserError(f"config.{field}={name!r}: not understood; write {FORM}")
    _file(field, name)


def load(field: str, name: str) -> Callable[..., Any]:
    """Imports and returns the function.

    Raises UserError if there is no such module or function, or the module cannot be imported.
    """
    check(field, name)
    module_name, _, function = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        problem = f"importing {module_name} raises {type(error).__name__}: {error}"
        raise UserError(f"config.{field}={name!r}: {problem}") from error
    value = getattr(module, function, None)
    if not callable(value):
        hint = near(function, [n for n in vars(module) if not n.startswith("_")])
        raise UserError(f"config.{field}={name!r}: no function {function!r}{hint} in {module.__file__}")
    return value


def call(field: str, name: str, /, *arguments: Any, **keywords: Any) -> Any:
    """Loads the function and calls it. Raises UserError as `load` does, or if the function raises."""
    function = load(field, name)
    try:
        return function(*arguments, **keywords)
    except Exception as error:
        raise UserError(f"config.{field}={name!r}: it raises {type(error).__name__}: {error}") from error


def digest(field: str, name: str) -> str:
    """Returns the SHA-256 of the module's source, in hexadecimal, because a run with changed code is a different run.

    It does not cover the modules that this module imports.

    Raises UserError if there is no such module.
    """
    return hashlib.sha256(_file(field, name).read_bytes()).hexdigest()


def _file(field: str, name: str) -> Path:
    module = name.partition(":")[0]
    try:
        # This imports the module's parent packages, but not the module itself.
        spec = importlib.util.find_spec(module)
    except Exception:  # A parent package may raise anything; the module is not there then.
        spec = None
    if spec is None or not spec.has_location or spec.origin is None:
        fix = "start in its folder, or name that in PYTHONPATH"
        raise UserError(f"config.{field}={name!r}: no module {module!r} here; {fix}")
    return Path(spec.origin)
