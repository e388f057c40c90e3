"""Builds a prediction's machine from a system's JSON and the accelerator's entry in data/accelerators.json."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import systems
from common.errors import UserError
from systems.predict import chips
from systems.predict.chips import Given

_GIGABIT = 1e9 / 8
LARGEST = 100_000  # Maximum accelerators of a hypothetical machine, and of a simulation.


@dataclasses.dataclass(frozen=True)
class Machine:
    """Attributes:
    name: the system's name.
    accelerators: total number; a TPU's are chips, as in the results tables.
    per_node: accelerators per host.
    node_bandwidth: bytes/s that a host sends to others; 0 for TPUs, which have links of their own.
    threads: hardware threads per host.
    chip: the accelerator's entry in data/accelerators.json, and its `name` there.
    hypothetical: whether it has more accelerators than any machine of its kind.
    """

    name: str
    accelerators: int
    per_node: int
    node_bandwidth: float
    threads: int
    chip: Mapping[str, Any]
    hypothetical: bool = False

    @property
    def family(self) -> str:
        """The accelerator family that shares fitted constants: "tpu-v3", "v100" or "h200"."""
        return self.chip["family"]

    @property
    def is_tpu(self) -> bool:
        return self.chip["tile"] == "systolic"

    @property
    def cores(self) -> int:
        """Number of cores, each holding a model replica: two per TPU chip."""
        return self.accelerators * self.chip["replicas"]

    @property
    def linked(self) -> int:
        """Accelerators that fast links join: a host's, or a rack's."""
        return min(self.accelerators, max(self.per_node, self.chip.get("domain", 0)))

    @property
    def nodes(self) -> int:
        return max(1, math.ceil(self.accelerators / self.per_node))

    def peak(self, precision: str) -> float:
        """FLOP/s of a core's matrix units."""
        peaks = self.chip["peak"]
        return peaks.get(precision, peaks["fp32"]) / self.chip["replicas"]

    @property
    def memory_bandwidth(self) -> float:
        """Bytes/s of a core's memory."""
        return self.chip["memory_bandwidth"] / self.chip["replicas"]


def machine(
    description: Mapping[str, Any],
    accelerators: int | None,
    notes: list[str],
    assume: bool = False,
    hypothetical: bool = False,
    given: Given | None = None,
) -> Machine:
    """The machine of a description, or one with `accelerators` of its kind.

    Args:
      description: the 33 fields of a system.
      accelerators: total number; None takes the description's.
      notes: list to which every assumption is appended.
      assume: use defaults even for fields without a natural one.
      hypothetical: allow up to LARGEST accelerators, more than the topology has.
      given: the user's figures of the accelerator.

    Raises:
      UserError: the accelerator is unknown, required fields are missing or make no sense, or there are more
        accelerators than the topology has.
    """
    name = str(description.get("system_name") or "system")
    chip = chips.chip(name, description, given or Given(), notes, assume)
    field = "host_processors_per_node" if chip.get("host") else "accelerators_per_node"
    per_node = _count(description, field, chip["per_node"], notes, name, assume)
    if accelerators is None:
        nodes = _count(description, "number_of_nodes", 1, notes, name, assume)
        accelerators = nodes * per_node
    _check_topology(name, chip, accelerators, per_node, hypothetical)
    if accelerators > chip["largest"]:
        notes.append(
            f"{name}: {accelerators} accelerators, where the largest of its kind has {chip['largest']}"
        )
    if "clock" in chip and chip["tile"] != "systolic":
        factor = _frequency(description, name) * 1e9 / chip["clock"] or 1.0
        chip = chip | {"peak": {k: v * factor for k, v in chip["peak"].items()}}
    return Machine(
        name=name,
        accelerators=accelerators,
        per_node=min(per_node, accelerators),
        node_bandwidth=_network(description, chip, notes, name),
        threads=_threads(description, chip, notes, name),
        chip=chip,
        hypothetical=accelerators > chip["largest"],
    )


def _frequency(description: Mapping[str, Any], name: str) -> float:
    """GHz in the description; 0 if it gives none."""
    text = str(description.get("accelerator_frequency") or "")
    found = re.match(r"([-\d.]+) *GHz", text)
    if not found:
        return 0.0
    if not re.fullmatch(r"\d{1,3}(\.\d*)?", found[1]) or not float(found[1]):
        raise UserError(f"{name}: accelerator_frequency: {text!r}: write it as in '1.53 GHz'")
    return float(found[1])


def load(name: str) -> dict[str, Any]:
    """Loads a system by name, or from a JSON file path.

    Raises:
      UserError: there is no such system, or the file is not a readable JSON object.
    """
    path = Path(name)
    if path.suffix != ".json":
        return systems.load(name)
    description = systems.read(path)
    if not isinstance(description, dict):
        raise UserError(f"{path}: not a JSON object; `timetotrain systems detect` writes a valid file")
    return description


def _count(description: Mapping, field: str, default: int, notes: list, name: str, assume: bool) -> int:
    text = str(description.get(field) or "").removesuffix(".0")
    if text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0:
        return int(text)
    if not assume:
        state = f"{text!r} is no number" if text else "missing"
        raise UserError(
            f"{name}: {field}: {state}, and the model needs it; write it, or --assume for {default}"
        )
    notes.append(f"{name}: {field} is not given: {default}")
    return default


def _check_topology(name: str, chip: Mapping, accelerators: int, per_node: int, hypothetical: bool) -> None:
    if accelerators < 1:
        raise UserError(f"--accelerators={accelerators}: must be at least 1")
    largest = max(LARGEST, chip["largest"]) if hypothetical else chip["largest"]
    if accelerators > largest:
        other = "" if hypothetical else f"; --simulate goes on to {LARGEST:,}"
        raise UserError(
            f"--accelerators={accelerators}: beyond the topology of {name}, which ends at {largest}{other}"
        )
    if chip["tile"] == "systolic":
        piece = chip.get("slice", 0)
        if accelerators & (accelerators - 1) and not (piece and accelerators % piece == 0):
            near = 1 << round(math.log2(accelerators))
            raise UserError(
                f"--accelerators={accelerators}: a slice of {name}'s torus has a power of two of chips; try {near}"
            )
    elif accelerators > per_node and accelerators % per_node:
        raise UserError(
            f"--accelerators={accelerators}: not whole nodes of {per_node}; try {accelerators // per_node * per_node}"
        )


def _network(description: Mapping, chip: Mapping, notes: list[str], name: str) -> float:
    """Bytes/s of the host's adapters that carry gradients: InfiniBand if present; storage adapters do not count."""
    if chip["tile"] == "systolic":
        return 0.0
    text = str(description.get("host_networking") or "")
    # Ten digits in a row are neither a count nor a speed.
    readable = not re.search(r"\d{10}", text)
    adapters = re.findall(r"(?:(\d+) x )?([\w ]{0,200}?)(\d+) ?Gbit/s([^,]*)", text) if readable else []
    fast = [a for a in adapters if "InfiniBand" in a[1] + a[3] and "storage" not in a[3]] or adapters[:1]
    total = sum(int(count or 1) * float(rate) * _GIGABIT for count, _, rate, _ in fast)
    if total:
        return total
    notes.append(f"{name}: host_networking gives no speed: {chip['node_gbit']} Gbit/s")
    return chip["node_gbit"] * _GIGABIT


def _threads(description: Mapping, chip: Mapping, notes: list[str], name: str) -> int:
    values = [
        str(description.get(f) or "") for f in ("host_processor_vcpu_count", "host_processors_per_node")
    ]
    if all(v.isascii() and v.isdecimal() and len(v) < 10 and int(v) > 0 for v in values):
        return int(values[0]) * int(values[1])
    notes.append(f"{name}: host_processor_vcpu_count is not given: {chip['threads']} threads a host")
    return chip["threads"]
