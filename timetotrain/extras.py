"""Replaces a missing package's traceback with one line that says what to install. TensorFlow-free.

tests/timetotrain/test_packaging.py checks the table against pyproject.toml.
"""

from __future__ import annotations

from common.files import INSTALLED

# Extra -> import names of its packages; "" lists the packages of every installation.
EXTRAS = {
    "": ("jinja2",),
    "train": (
        *("PIL", "absl", "av", "google", "h5py", "jax", "jaxlib", "matplotlib", "ml_collections", "numpy"),
        *("mlperf_logging", "optuna", "py3langid", "pycocotools", "tensorflow", "tf_keras", "tqdm", "yaml"),
        "tensorboard",  # Comes with tensorflow.
    ),
    "export": ("google", "numpy", "onnx", "safetensors", "tf2onnx"),
    "text": (
        *("ai_edge_litert", "backports", "google", "numpy", "official", "sacrebleu", "sacremoses"),
        *("subword_nmt", "tokenizers"),
    ),
}


def line(error: ModuleNotFoundError) -> str | None:
    """Returns the line that says what to install; None if a module of the checkout, or of no extra, is missing."""
    missing = (error.name or "").partition(".")[0]
    for extra, names in EXTRAS.items():
        if missing in names:
            if INSTALLED:
                return f"{missing} is not installed; run: pip install --force-reinstall timetotrain"
            target = "text" if extra == "text" else "setup"
            return f"{missing} is not installed; run `make {target}`, and use .venv/bin/python"
    return f"{error.name} is not part of this installation; it needs a checkout" if INSTALLED else None
