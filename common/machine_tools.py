"""Asks the machine what it has: its own query programs (lscpu, nvidia-smi) and packages. TensorFlow-free."""

import contextlib
import os
import shutil
import subprocess
from importlib import metadata


def versions(*packages: str) -> dict[str, str]:
    """Returns {package: version} of those packages that are installed, without importing them."""
    installed = {}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[package] = metadata.version(package)
    return installed


def text(path: os.PathLike) -> str:
    """Returns the text of a file, such as one of /proc; "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def output(*command: str, seconds: float = 10) -> str:
    """Returns a command's output in the C locale; '' if it is not installed, fails or takes longer than `seconds`."""
    if not shutil.which(command[0]):
        return ""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds,
            env={**os.environ, "LC_ALL": "C"},
            errors="replace",
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def nvidia_smi(*fields: str, seconds: float = 10) -> list[list[str]]:
    """Returns nvidia-smi's `fields` (such as "memory.total") for each GPU, without units, in PCI order.

    The list is empty if nvidia-smi is not installed, fails or sees no GPU. A value unknown to the driver is "[N/A]".
    """
    query = f"--query-gpu={','.join(fields)}"
    return rows(output("nvidia-smi", query, "--format=csv,noheader,nounits", seconds=seconds), len(fields))


def rows(text: str, columns: int) -> list[list[str]]:
    """Splits comma-separated text into cells; keeps the lines with exactly `columns` cells and a first one."""
    lines = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [cells for cells in lines if len(cells) == columns and all(cells[:1])]
