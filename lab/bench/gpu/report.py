"""The results file, written after every row, and the table that is printed from it."""

import datetime
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import machine_tools
from common.errors import UserError

FORMAT = 1
_ASKED = ("name", "driver_version", "memory.total", "clocks.max.sm", "clocks.max.memory", "power.limit")
_PACKAGES = (
    *("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "flax", "optax", "numpy", "torch", "triton"),
    *("nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cublas", "tensorflow", "tensorflow-cpu", "tf-keras"),
)


def described() -> dict[str, Any]:
    """Returns card and driver from nvidia-smi, the host's processors, and versions, without starting jax."""
    description: dict[str, Any] = {}
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader"]
        with_gpu = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        rows = [line.split(", ") for line in with_gpu.stdout.strip().splitlines()]
        if with_gpu.returncode == 0 and rows:
            description = dict(zip(_ASKED, rows[0])) | {"count": len(rows)}
    versions = {"python": platform.python_version(), **machine_tools.versions(*_PACKAGES)}
    return {"nvidia_smi": description, "cores": os.cpu_count(), "versions": versions}


class Report:
    """The measured rows and their file.

    Attributes:
      rows: {name: figures, or {"error": ...}}.
    """

    def __init__(self, path: Path):
        """Continues the file if it exists.

        Raises UserError if lab.bench.gpu did not write it, or it is for another card or other versions.
        """
        self._path = path
        self._about = {"format": FORMAT, "date": datetime.date.today().isoformat(), **described()}
        self.rows: dict[str, dict[str, Any]] = {}
        self.not_run: list[str] = []
        if path.exists():
            self._read()

    def _read(self) -> None:
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            self.rows = dict(content["rows"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"--out={self._path}: {error}; no file of lab.bench.gpu, name another") from error
        for key in ("nvidia_smi", "format"):
            if content.get(key) != self._about[key]:
                raise UserError(
                    f"--out={self._path}: has {key} {content.get(key)}, here {self._about[key]}; name another"
                )
        # TensorFlow may be installed by now.
        self._about["versions"] = {**content["versions"], **self._about["versions"]}
        self._about["date"] = content["date"]

    def done(self, name: str) -> bool:
        """Whether the row has figures; a row with an error is tried again."""
        return name in self.rows and "error" not in self.rows[name]

    def add(self, name: str, row: Mapping[str, Any]) -> None:
        """Adds a row and writes the file."""
        self.rows[name] = dict(row)
        self.write()

    def write(self) -> None:
        """Writes the file; the old one stays until the new one is complete."""
        new = self._path.with_name(f".{self._path.name}.new")
        new.write_text(json.dumps(self.whole(), indent=1) + "\n", encoding="utf-8")
        os.replace(new, self._path)

    def whole(self) -> dict[str, Any]:
        """Returns the file's contents: rows with their floors."""
        ceilings = self.rows.get("ceilings", {})
        return {
            **self._about,
            **{key: ceilings.get(key) for key in ("platform", "device")},
            "rows": {name: with_floor(row, ceilings) for name, row in self.rows.items()},
            "not_run": self.not_run,
        }


def with_floor(row: Mapping[str, Any], ceilings: Mapping[str, Any]) -> dict[str, Any]:
    """Adds to a step's row its floor: the time for its bytes or its products at the card's rates, whichever is longer.

    The bytes are the compiler's count of what the program accesses; it counts loop bodies once.
    """
    if (
        not row.get("compiler_gb_accessed")
        or "matrix_tflop" not in row
        or not ceilings.get("copy_gb_per_second")
    ):
        return dict(row)
    floors = {
        "bytes": 1000 * row["compiler_gb_accessed"] / ceilings["copy_gb_per_second"],
        "products": 1000 * row["matrix_tflop"] / ceilings["product_tflops"],
    }
    of = max(floors, key=lambda key: floors[key])
    share = {"floor_ms": floors[of], "floor_of": of, "share_of_floor": floors[of] / row["ms"]}
    return {**row, **share}


def line(name: str, row: Mapping[str, Any]) -> str:
    """Formats a row for people."""
    if "error" in row:
        return f"{name:36} error: {row['error']}"
    if "copy_gb_per_second" in row:
        rates = f"{row['copy_gb_per_second']:,.0f} GB/s copied, {row['product_tflops']:,.1f} TFLOP/s"
        return f"{name:36} {rates}, {row['device']}"
    if "gradient_error" in row:
        worst, word = row["gradient_error"], "equal" if row["equal"] else "DIFFERS"
        return f"{name:36} {word}: gradients {worst['relative']:.2g} ({worst['of']}), losses {row['losses']}"
    if "tokens_per_second" in row:
        utilization = row["model_flops_utilization"]
        share = f", {utilization:.1%} of the peak" if utilization else ""
        peak = row["device_memory"].get("peak_bytes_in_use_gb")
        memory = f", {peak:.1f} GB at most" if peak else ""
        return f"{name:36} {row['ms']:9.2f} ms, {row['tokens_per_second']:,.0f} tokens/s{share}{memory}"
    if "equal" in row:
        worst = row["state_error"]
        word = "equal" if row["equal"] else "DIFFERS"
        return (
            f"{name:36} {word}: losses {row['loss_error']:.2g}, state {worst['relative']:.2g} ({worst['of']})"
        )
    if "clock_seconds" in row:
        return (
            f"{name:36} {row['status']} after {row['clock_seconds']:.1f} s, {row['all_seconds']:.0f} s in all"
        )
    if "images_per_second" in row:
        return (
            f"{name:36} {row['images_per_second']:,.0f} images/s, starts after {row['start_seconds']:.0f} s"
        )
    if "ms" in row:
        share = f", {row['share_of_floor']:.0%} of the floor" if "share_of_floor" in row else ""
        return f"{name:36} {row['ms']:9.2f} ms, {row['examples_per_second']:,.1f} examples/s{share}"
    return f"{name:36} compiled in {row['compile_seconds']:.0f} s"
