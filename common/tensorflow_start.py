"""Makes `import tensorflow` skip jax, pandas and SciPy, which it imports for features that this project does not use.

TensorFlow imports jax for TensorFlow Lite, pandas and SciPy for forms of Keras's input, if they are installed, and does
without them if they are not. Without them, its start takes 3.9 s of processor time instead of 5.2 s. This file can go
when `import tensorflow` puts these imports off, or when jax is no longer installed beside it.
"""

import sys
from importlib.machinery import ModuleSpec

_UNUSED = ("jax", "pandas", "scipy")


class _Absent:
    """Reports the packages as missing while TensorFlow is being imported."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Raises ModuleNotFoundError for a package that TensorFlow should do without; None leaves it to others."""
        tensorflow = getattr(sys.modules.get("tensorflow"), "__spec__", None)
        if name in _UNUSED and getattr(tensorflow, "_initializing", False):
            raise ModuleNotFoundError(f"{name} is not loaded while TensorFlow starts", name=name)
        return None


def install() -> None:
    """Puts the finder in front of Python's own."""
    sys.meta_path.insert(0, _Absent)  # type: ignore[arg-type]
