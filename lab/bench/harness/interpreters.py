"""Interpreters for peers outside this project's environment: PyTorch's and JAX's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.bench.harness import ROOT

TORCH = "torch==2.13.0"
_TORCH_VENV = ROOT / ".cache" / "torch-venv"


def peers(torch_python: str | None, jax_python: str | None = None) -> dict[str, str]:
    """Returns {peer: absolute path of its interpreter}; leaves out a peer that has none.

    Raises:
      SystemExit: the file does not exist.
    """
    found = {"torch": torch_python, "jax": jax_python}
    for name, python in found.items():
        if python and not Path(python).exists():
            sys.exit(f"--{name}-python={python}: no such interpreter; name one that can import {name}")
    # Contenders run in ROOT, so make the path absolute. Keep links: a venv's link tells Python which venv it is.
    return {name: str(Path(python).absolute()) for name, python in found.items() if python}


def left_out(interpreters: Mapping[str, str], wanted: Sequence[str], decisive: bool = True) -> list[str]:
    """Returns and prints the `wanted` peers that have no interpreter; if they are `decisive`, there is no verdict."""
    missing = [name for name in wanted if name not in interpreters]
    if missing:
        flags = ", ".join(f"--{name}-python" for name in missing)
        end = "; no verdict without them" if decisive else ""
        print(f"left out: {', '.join(missing)} (give {flags}){end}", flush=True)
    return missing


def installed_torch() -> str:
    """Returns the interpreter of .cache/torch-venv; installs PyTorch there on first use.

    Raises:
      SystemExit: the installation fails.
    """
    python = _TORCH_VENV / "bin" / "python"
    if python.exists() and not subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
        return str(python)
    print(f"installing {TORCH} into {_TORCH_VENV.relative_to(ROOT)}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(_TORCH_VENV)], check=True)
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", TORCH, "numpy"]
    if subprocess.run(install).returncode:
        sys.exit(f"{TORCH} could not be installed; leave out --torch")
    return str(python)
