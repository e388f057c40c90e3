"""Modules of tf-models-official. TensorFlow comes with them, so they are imported where they are needed."""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType


def load(name: str) -> ModuleType:
    """A module by its name behind `official.`.

    Raises:
      ImportError: it is not installed.
    """
    with warnings.catch_warnings():
        # Of Google's client libraries, which come with it: they warn of Python versions to come.
        warnings.simplefilter("ignore", FutureWarning)
        return importlib.import_module(f"official.{name}")
