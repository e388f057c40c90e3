"""Result files of bench/: what stands at their head, and how they are written."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.harness import ROOT

RESULTS = ROOT / "bench" / "results"


def head(*packages: str) -> dict[str, Any]:
    """The date, and the `machine` with the versions of some more packages."""
    return {"date": datetime.date.today().isoformat(), "machine": machine(*packages)}


def machine(*packages: str) -> dict[str, Any]:
    """Processor, cores, load averages of 1, 5 and 15 minutes before the run, versions.

    Versions are those of Python, TensorFlow, Keras and `packages`; what is not installed is left out.
    """
    cpu = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    versions = {package: _version(package) for package in ("tensorflow", "tf-keras", *packages)}
    return {
        "cpu": cpu,
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
    """A script's results as JSON; makes the folder."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=1) + "\n")
