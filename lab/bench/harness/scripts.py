"""What every script of lab/bench/ needs: flags, the result file, interpreters of peers, errors in one line."""

import argparse
import datetime
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import machine_tools
from common.config.hardware import cpu_flags
from lab.bench.harness import ROOT

RESULTS = ROOT / "lab/bench/results"
# Flags of /proc/cpuinfo, the fastest instructions first; they decide which oneDNN kernels run, and how fast.
_INSTRUCTIONS = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 with bf16", "avx512f": "AVX-512", "avx2": "AVX2"}


def head(*packages: str) -> dict[str, Any]:
    """Returns the date, and of the machine: processor, fastest instructions, cores, load averages, and versions.

    The load averages are those of 1, 5 and 15 minutes before the run. The cores are those that this process may use.
    Versions are those of Python, TensorFlow, Keras and `packages`, without packages that are not installed.
    """
    cpu, flags = platform.processor(), cpu_flags()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    machine = {
        "cpu": cpu,
        "instructions": next((name for flag, name in _INSTRUCTIONS.items() if flag in flags), ""),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg(),
        "python": platform.python_version(),
        **machine_tools.versions("tensorflow", "tf-keras", *packages),
    }
    return {"date": datetime.date.today().isoformat(), "machine": machine}


def write(result: Mapping[str, Any], output: Path) -> None:
    """Writes a script's results as JSON; creates the folder."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=1) + "\n")


def peers(torch_python: str | None, jax_python: str | None = None) -> dict[str, str]:
    """Returns {peer: absolute path of its interpreter}; leaves out a peer that has none.

    Raises SystemExit if the file does not exist.
    """
    pythons = {"torch": torch_python, "jax": jax_python}
    for name, python in pythons.items():
        if python and not Path(python).exists():
            sys.exit(f"--{name}_python={python}: no such interpreter; name one that can import {name}")
    # Contenders run in ROOT, so make the path absolute. Keep links: a venv's link tells Python which venv it is.
    return {name: str(Path(python).absolute()) for name, python in pythons.items() if python}


def left_out(interpreters: Mapping[str, str], peers: Sequence[str]) -> None:
    """Prints the peers that have no interpreter."""
    if missing := [name for name in peers if name not in interpreters]:
        flags = ", ".join(f"--{name}_python" for name in missing)
        print(f"left out: {', '.join(missing)} (give {flags})", flush=True)


def parser(doc: str | None, output: str | None = None, rounds: int | None = None) -> argparse.ArgumentParser:
    """Returns a parser with `--rounds` and `--output`, a file in lab/bench/results/, if their defaults are given.

    The first line of `doc`, the script's docstring, is the description.
    """
    whole = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    if rounds is not None:
        whole.add_argument(
            "--rounds", type=int, default=rounds, help=f"of every contender; default: {rounds}"
        )
    if output is not None:
        whole.add_argument("--output", type=Path, default=RESULTS / output, help="result file")
    return whole


def with_folder(parser: argparse.ArgumentParser, meaning: str) -> argparse.Namespace:
    """Parses the command line with a folder, `meaning`; without one, which `make bench` leaves out, the script ends."""
    parser.add_argument("folder", type=Path, nargs="?", help=meaning)
    options = parser.parse_args()
    if options.folder is None:
        print(f"nothing to do: name {meaning}")
        sys.exit(0)
    return options
