"""Names the extra that a missing package belongs to: one line in place of a traceback. TensorFlow-free.

tests/timetotrain/test_extras.py holds the table to pyproject.toml.
"""

from __future__ import annotations

import sys
from types import TracebackType

# Extra -> the import names of its packages; "" is what every installation has.
EXTRAS = {
    "": ("jinja2", "mlperf_logging", "shtab", "yaml"),
    "train": (
        *("PIL", "absl", "av", "google", "h5py", "jax", "jaxlib", "matplotlib", "ml_collections", "numpy"),
        *("optuna", "pycocotools", "tensorflow", "tf_keras", "tqdm"),
        "tensorboard",  # Comes with tensorflow.
    ),
    "export": ("onnx", "safetensors", "tf2onnx"),
    "xlsx": ("openpyxl",),
    "text": ("ai_edge_litert", "backports", "official", "sacrebleu", "sacremoses", "subword_nmt"),
}


def line(error: ModuleNotFoundError, installed: bool) -> str | None:
    """Returns the line that says what to install, or None where no extra has the missing module.

    Args:
      error: what an import raised.
      installed: whether this is an installed package, not a checkout.
    """
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
    """Is sys.excepthook of `python -m timetotrain.PART`: a missing extra is one line, and the status 2."""
    if isinstance(error, ModuleNotFoundError) and _started_here() and (text := line(error, True)):
        print(f"error: {text}", file=sys.stderr, flush=True)
        sys.exit(2)
    sys.__excepthook__(kind, error, trace)


def _started_here() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.partition(".")[0] == __package__
