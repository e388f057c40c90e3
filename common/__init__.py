"""Code that all benchmarks share; imports no benchmark."""

import os
import platform
import sys
import warnings
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

# Set before TensorFlow is imported: hides its C++ start-up messages.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# The networks are tf_keras's. Otherwise TensorFlow also loads Keras 3, and with it scikit-learn and SciPy.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
if platform.machine() in ("x86_64", "AMD64"):
    # By default TensorFlow uses oneDNN's kernels only on processors with VNNI, bf16 or AMX. On two AVX2 cores a step
    # with them takes 0.80 of the time for ResNet-50, 0.89 to 0.94 for the perceptron, 0.91 for the MNIST LSTM and 0.96
    # to 1.11 for PTB.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# Comes from a dependency of tf-models-official that announces when it drops this version of Python.
warnings.filterwarnings("ignore", message="You are using a Python version", category=FutureWarning)


_UNUSED = ("jax", "pandas", "scipy")
_LATER = ("googleapiclient.discovery", "oauth2client.client")


def _starts() -> bool:
    """Whether TensorFlow is being imported."""
    return getattr(getattr(sys.modules.get("tensorflow"), "__spec__", None), "_initializing", False)


class _Later(Loader):
    """Loads a module when its first name is used. `importlib.util.LazyLoader` would load it when AutoGraph looks for
    the file of every module.
    """

    def __init__(self, loader: Any):
        self._loader = loader

    def exec_module(self, module: ModuleType) -> None:
        """Puts the loading off."""

        def find(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            if _starts():
                # TensorFlow takes a class from the module as it starts: something that finds the class's attributes.
                return type(name, (), {"__getattr__": lambda _, part: getattr(getattr(module, name), part)})()
            if vars(module).pop("__getattr__", None):
                self._loader.exec_module(module)
            return getattr(module, name)

        module.__getattr__ = find  # type: ignore[method-assign]


class _Start:
    """Halves TensorFlow's start: it loads no jax (for TensorFlow Lite), no pandas and SciPy (for forms of Keras's input
    that nothing here has), and Google's API and login clients on their first use.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Finds a module that TensorFlow imports as it starts; None for any other."""
        if name not in (*_UNUSED, *_LATER) or not _starts():
            return None
        if name in _UNUSED:
            raise ModuleNotFoundError(f"{name} is not loaded while TensorFlow starts", name=name)
        spec = PathFinder.find_spec(name, path)  # type: ignore[arg-type]
        if spec is not None and spec.loader is not None:
            spec.loader = _Later(spec.loader)
        return spec


sys.meta_path.insert(0, _Start)  # type: ignore[arg-type]
