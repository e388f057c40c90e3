"""Code that all benchmarks share; imports no benchmark."""

import os
import platform
import sys
import warnings
from importlib.machinery import ModuleSpec

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


# Kept out of TensorFlow's start, since nothing here uses them through it: TensorFlow imports jax for TensorFlow Lite,
# pandas and SciPy for forms of Keras's input, if they are installed, and does without them if they are not. Without
# them, its start takes 3.9 s of processor time instead of 5.2 s. The rest of this file can go when `import tensorflow`
# puts these imports off, or when jax is no longer installed beside it.
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


sys.meta_path.insert(0, _Absent)  # type: ignore[arg-type]
