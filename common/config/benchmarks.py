"""Lists the benchmarks and imports their modules. TensorFlow-free."""

import importlib
from types import ModuleType

from common.files import ROOT

# The benchmark folders, in alphabetical order.
NAMES = tuple(sorted(path.parent.name for path in ROOT.glob("*/task.py")))


def module(benchmark: str, part: str) -> ModuleType:
    """Imports and returns a module of a benchmark; `part` is "config", "presets" or "task".

    It imports nothing for a name that is not in NAMES.

    Raises ModuleNotFoundError: no such benchmark or part.
    """
    if benchmark not in NAMES:
        raise ModuleNotFoundError(f"no benchmark {benchmark!r}", name=benchmark)
    return importlib.import_module(f"{benchmark}.{part}")
