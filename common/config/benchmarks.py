"""Lists the benchmarks and imports their modules: `resnet` in a checkout, `timetotrain.resnet` in the wheel.

TensorFlow-free.
"""

import importlib
from types import ModuleType

from common.files import ROOT

# Prefix of every module's name: "" in a checkout, "timetotrain." in the wheel.
PREFIX = __name__.removesuffix("common.config.benchmarks")
# The benchmark folders, in alphabetical order.
NAMES = tuple(sorted(path.parent.name for path in ROOT.glob("*/task.py")))


def command(name: str) -> str:
    """Returns the name that `python -m` accepts for a package or module: "resnet", "resnet.tiny"."""
    return PREFIX + name


def module(benchmark: str, part: str) -> ModuleType:
    """Imports and returns a module of a benchmark; `part` is "config", "presets" or "task".

    It imports nothing for a name that is not in NAMES.

    Raises ModuleNotFoundError if there is no such benchmark or part.
    """
    if benchmark not in NAMES:
        raise ModuleNotFoundError(f"no benchmark {benchmark!r}", name=f"{PREFIX}{benchmark}")
    return importlib.import_module(f"{PREFIX}{benchmark}.{part}")
