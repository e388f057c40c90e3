"""Replaces a missing package's traceback with one line that names the extra to install. TensorFlow-free.

tests/timetotrain/test_packaging.py checks the table against pyproject.toml.
"""

from __future__ import annotations

import sys
from types import TracebackType

# Extra -> import names of its packages; "" lists the packages of every installation.
EXTRAS = {
    "": ("jinja2", "mlperf_logging", "yaml"),
    "train": (
        *("PIL", "absl", "av", "google", "h5py", "jax", "jaxlib", "matplotlib", "ml_collections", "numpy"),
        *("optuna", "py3langid", "pycocotools", "tensorflow", "tf_keras", "tqdm"),
        "tensorboard",  # Comes with tensorflow.
    ),
    "export": ("google", "numpy", "onnx", "safetensors", "tf2onnx"),
    "text": (
        *("ai_edge_litert", "backports", "google", "numpy", "official", "sacrebleu", "sacremoses"),
        *("subword_nmt", "tokenizers"),
    ),
}


def line(error: ModuleNotFoundError, installed: bool) -> str | None:
    """Returns the line that says what to install, in a checkout or `installed`; None if no extra has the module."""
    missing = (error.name or "").partition(".")[0]
    for extra, names in EXTRAS.items():
        if missing in names:
            if not installed:
                target = "text" if extra == "text" else "setup"
                return f"{missing} is not installed; run `make {target}`, and use .venv/bin/python"
            if not extra:
                return f"{missing} is not installed; run: pip install --force-reinstall timetotrain"
            return f"{missing} is not installed; it comes with extra `{extra}`: pip install 'timetotrain[{extra}]'"
    return None


def explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """sys.excepthook of `python -m timetotrain.PART`: prints one line for a missing extra and exits with status 2."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    started_here = spec is not None and spec.name.partition(".")[0] == __package__
    if isinstance(error, ModuleNotFoundError) and started_here and (text := line(error, True)):
        print(f"error: {text}", file=sys.stderr, flush=True)
        sys.exit(2)
    sys.__excepthook__(kind, error, trace)
