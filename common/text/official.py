"""Imports tf-models-official's modules only when needed, because they import TensorFlow."""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType


def load(name: str) -> ModuleType:
    """Imports the module `official.<name>`.

    Raises ImportError if tf-models-official is not installed.
    """
    with warnings.catch_warnings():
        # It imports Google's client libraries, which warn about future Python versions.
        warnings.simplefilter("ignore", FutureWarning)
        return importlib.import_module(f"official.{name}")
