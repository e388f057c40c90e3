"""Renders the page of compiled presets from the kept results of the presets that callers pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.files import markdown_table
from systems.compile import series
from systems.compile.store import RESULTS

_HEAD = (
    "preset", "step", "device", "devices", "MiB a device", "fits", "estimate, ms", "collectives", "MB",
    "copies", "64-bit",
)  # fmt: skip
_GPU_HEAD = (
    "preset", "step", "device", "devices", "MiB a device", "fits", "library calls", "products in",
    "wider than 16 bits", "collectives", "MB",
)  # fmt: skip
_TEXT = """# Compiled presets

`timetotrain systems compile all` compiles the steps of every preset for its TPUs or GPUs, without them: of {presets}
presets {fine} compile and fit.

## TPUs

The estimate is the scheduler's cycles at the device's clock, without the exchange. MB is what a device gives to its
collectives; copies are their share of the cycles; 64-bit counts operations that the device emulates.

{tpus}

## GPUs

The memory is a lower bound: the compiler does not know cuDNN's workspace. "Wider than 16 bits" names layers whose
products are wider where the preset computes in 16.

{gpus}

## What misses

{missing}
"""


def render(presets: Sequence[series.Preset], results: Path = RESULTS) -> str:
    """Returns the page about these presets."""
    records = _records(presets, results)
    compiled = {(record["benchmark"], record["system"]) for record in records}
    outcomes = [(f"{r['benchmark']} `{r['system']}`", series.misses(r, results)) for r in records]
    outcomes += [(f"{b} `{s}`", "not compiled yet") for b, s, _ in presets if (b, s) not in compiled]
    missing = [f"- {name}: {reason}" for name, reason in outcomes if reason]
    return _TEXT.format(
        presets=len(presets), fine=len(presets) - len(missing), tpus=_tpus(records, results),
        gpus=_gpus(records, results), missing="\n".join(missing) or "Nothing.",
    )  # fmt: skip


def table(presets: Sequence[series.Preset], results: Path = RESULTS) -> str:
    """Returns these presets' tables, TPUs before GPUs."""
    records = _records(presets, results)
    return "\n\n".join(filter(None, (_tpus(records, results), _gpus(records, results))))


def _records(presets: Sequence[series.Preset], results: Path) -> list[dict[str, Any]]:
    records = [series.record_of(benchmark, system, results) for benchmark, system, _ in presets]
    return [record for record in records if record]


def _tpus(records: list[dict], results: Path) -> str:
    rows = []
    for start, report in _compiled(records, results, "cycles", "unread"):
        if "unread" in report:
            rows.append((*start, *["not read"] * 5))
            continue
        moved = report["collectives"]
        total = max(1, report["cycles"]["total"])
        rows.append((
            *start, _estimate(report), sum(row["count"] for row in moved),
            f"{sum(row['bytes'] for row in moved) / 1e6:.1f}", f"{report['copies']['cycles'] / total:.0%}",
            sum(report["wide_arithmetic"].values()) or "none",
        ))  # fmt: skip
    return markdown_table(_HEAD, rows) if rows else ""


def _estimate(report: dict[str, Any]) -> str:
    if report["estimated_ms"] is None:
        return "not known"
    # A loop of unknown length counts once.
    start = "at least " if report["cycles"]["loops_of_unknown_length"] else ""
    return f"{start}{report['estimated_ms']:.1f}"


def _gpus(records: list[dict], results: Path) -> str:
    rows = []
    for start, report in _compiled(records, results, "kernels"):
        calls, bits = Counter(report["kernels"]["calls"]), report["kernels"]["matrix_types"]
        moved = report["collectives"]
        rows.append((
            *start, ", ".join(f"{name.removeprefix('__')} {n}" for name, n in calls.most_common()) or "none",
            ", ".join(f"{kind} {n}" for kind, n in bits.items()) or "none", _wide(report["kernels"]),
            sum(row["count"] for row in moved), f"{sum(row['bytes'] for row in moved) / 1e6:.1f}",
        ))  # fmt: skip
    return markdown_table(_GPU_HEAD, rows) if rows else ""


def _wide(kernels: dict) -> str:
    """The layers whose products have operands wider than 16 bits, in a program where other products use 16 bits."""
    if not {"f16", "bf16"} & kernels["matrix_types"].keys():
        return "all"
    return ", ".join(f"{layer} {n}" for layer, n in kernels["wide_matrices"].items()) or "none"


def _compiled(records: list[dict], results: Path, *parts: str) -> list[tuple[tuple, dict]]:
    """Returns (first cells of a row, report) for each program whose report has one of `parts`."""
    rows = []
    for record in records:
        for name, report in series.reports(record, results).items():
            if any(part in report for part in parts):
                needed, capacity = (round(report[key] / 2**20) for key in ("needed_bytes", "device_bytes"))
                start = (
                    f"{record['benchmark']} `{record['system']}`", name, record["kind"], record["replicas"],
                    f"{needed} of {capacity}", "yes" if report["fits"] else "**no**",
                )  # fmt: skip
                rows.append((start, report))
    return rows
