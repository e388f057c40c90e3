"""Functions of one's own, named in a configuration as MODULE:FUNCTION: rules of optimizers, and schedules.

The module is one that Python finds: in the folder where a command starts, on PYTHONPATH, or installed. Naming one
needs no edit of this project (docs/add-an-optimizer.md). TensorFlow-free, unless the module that is loaded is not.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.errors import UserError, near

FORM = "MODULE:FUNCTION, as mypackage.module:function"


def is_own(name: str) -> bool:
    """Whether a name is MODULE:FUNCTION, not one that this project knows."""
    return ":" in name


def short(name: str) -> str:
    """Returns the function's name of MODULE:FUNCTION, and any other name as it is."""
    return name.rpartition(":")[2]


def check(field: str, name: str) -> None:
    """Refuses a name whose module is not found; the module is not imported.

    Raises:
      UserError: the name has another form, or there is no such module.
    """
    module, _, function = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), function)):
        raise UserError(f"config.{field}={name!r}: not understood; write {FORM}")
    _file(field, name)


def load(field: str, name: str) -> Callable[..., Any]:
    """Imports and returns the function.

    Raises:
      UserError: there is no such module or function, or the module cannot be imported.
    """
    check(field, name)
    module_name, _, function = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise UserError(
            f"config.{field}={name!r}: importing {module_name} raises {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, function, None)
    if not callable(found):
        hint = near(function, [n for n in vars(module) if not n.startswith("_")])
        raise UserError(f"config.{field}={name!r}: no function {function!r}{hint} in {module.__file__}")
    return found


def call(field: str, name: str, /, *arguments: Any, **keywords: Any) -> Any:
    """Loads the function and returns what it makes of the arguments.

    Raises:
      UserError: as `load`, or the function raises.
    """
    function = load(field, name)
    try:
        return function(*arguments, **keywords)
    except Exception as error:
        raise UserError(f"config.{field}={name!r}: it raises {type(error).__name__}: {error}") from error


def digest(field: str, name: str) -> str:
    """Returns the SHA-256 of the module's source, in hexadecimal: with other code, a run is another run.

    Modules that it imports in turn are not part of it.

    Raises:
      UserError: no such module.
    """
    return hashlib.sha256(_file(field, name).read_bytes()).hexdigest()


def _file(field: str, name: str) -> Path:
    module = name.partition(":")[0]
    try:
        # Imports the packages around the module, but not the module.
        spec = importlib.util.find_spec(module)
    except Exception:  # Whatever a package around it raises, the module is not there.
        spec = None
    if spec is None or not spec.has_location or spec.origin is None:
        raise UserError(
            f"config.{field}={name!r}: no module {module!r} here; start in its folder, or name that in PYTHONPATH"
        )
    return Path(spec.origin)
