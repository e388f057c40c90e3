"""Result files of lab/bench/: their common header, and how to write them."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from common.config.hardware import cpu_flags
from lab.bench.harness import ROOT

RESULTS = ROOT / "lab/bench/results"
# Flags of /proc/cpuinfo, the fastest instructions first; they decide which oneDNN kernels run, and how fast.
_INSTRUCTIONS = {
    "amx_bf16": "AMX",
    "avx512_bf16": "AVX-512 with bf16",
    "avx512f": "AVX-512",
    "avx2": "AVX2",
}


def head(*packages: str) -> dict[str, Any]:
    """Returns the date, and the `machine` with the versions of `packages`."""
    return {"date": datetime.date.today().isoformat(), "machine": machine(*packages)}


def machine(*packages: str) -> dict[str, Any]:
    """Returns processor, fastest instructions, cores, load averages (1, 5, 15 minutes) before the run, and versions.

    Versions are those of Python, TensorFlow, Keras and `packages`, without packages that are not installed.
    """
    cpu, flags = platform.processor(), cpu_flags()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    versions = {package: _version(package) for package in ("tensorflow", "tf-keras", *packages)}
    return {
        "cpu": cpu,
        "instructions": next((name for flag, name in _INSTRUCTIONS.items() if flag in flags), ""),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg(),
        "python": platform.python_version(),
        **{package: found for package, found in versions.items() if found},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def write(result: Mapping[str, Any], output: Path) -> None:
    """Writes a script's results as JSON; creates the folder."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=1) + "\n")
