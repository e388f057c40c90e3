"""Renders docs/compiled.md from the kept results of the presets that callers pass; a test compares them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.files import ROOT
from systems.compile import series
from systems.compile.store import RESULTS

PATH = ROOT / "docs/compiled.md"
_HEAD = (
    "preset",
    "step",
    "device",
    "devices",
    "MiB a device",
    "fits",
    "estimate, ms",
    "collectives",
    "MB",
    "copies",
    "64-bit",
)
_GPU_HEAD = (
    "preset",
    "step",
    "device",
    "devices",
    "MiB a device",
    "fits",
    "library calls",
    "products in",
    "wider than 16 bits",
    "collectives",
    "MB",
)
_TEXT = """# What the compilers say of every preset

`python -m systems compile all` compiles the steps of every preset whose machine has TPUs or GPUs, for that machine,
without it ([how](compile.md)). This page is generated from `systems/compile/results/`; `make docs` writes it anew.

{counts}

## TPUs

- estimate: the scheduler's cycles at the device's clock, without the exchange. MB: what a device gives to its
  collectives. copies: their share of the cycles. 64-bit: operations that the device emulates.
- not read: it compiles, but jaxlib cannot read the optimised program that libtpu gives back (some of v6e).
- A preset without a row has not been compiled yet.

{tpus}

## GPUs

- The compiler knows no workspace of cuDNN, so the memory is a lower bound, and gives no time.
- products in: convolutions and matrix products by the type of their operands, those of a loop as often as it runs.
  wider than 16 bits: their layers, where the preset computes in 16.

{gpus}

## What it takes

Of the largest program of each benchmark, in seconds of one processor; the export comes before.

{effort}

## What misses

{missing}

## Not compiled yet

{rest}
"""


def render(known: Sequence[series.Preset], results: Path = RESULTS) -> str:
    """Returns the page about these presets."""
    records = _records(known, results)
    missing = [(r, reason) for r in records if (reason := series.misses(r, results))]
    compiled = {(r["benchmark"], r["system"]) for r in records}
    rest: dict[str, list[str]] = {}
    for benchmark, system, _ in known:
        if (benchmark, system) not in compiled:
            rest.setdefault(benchmark, []).append(f"`{system}`")
    return _TEXT.format(
        counts=_table(
            ("presets", "compiled", "compile and fit", "do not", "not compiled yet"),
            [
                (
                    len(known),
                    len(records),
                    len(records) - len(missing),
                    len(missing),
                    len(known) - len(records),
                )
            ],
        ),
        tpus=_tpus(records, results),
        gpus=_gpus(records, results),
        effort=_effort(records, results),
        missing="\n".join(f"- {r['benchmark']} `{r['system']}`: {reason}" for r, reason in missing)
        or "Nothing.",
        rest="\n".join(f"- {benchmark}: {', '.join(names)}" for benchmark, names in rest.items()) or "None.",
    )


def table(known: Sequence[series.Preset], results: Path = RESULTS) -> str:
    """Returns these presets' tables, TPUs before GPUs."""
    records = _records(known, results)
    return "\n\n".join(filter(None, (_tpus(records, results), _gpus(records, results))))


def _records(known: Sequence[series.Preset], results: Path) -> list[dict[str, Any]]:
    found = [series.record_of(benchmark, system, results) for benchmark, system, _ in known]
    return [record for record in found if record]


def _tpus(records: list[dict], results: Path) -> str:
    rows = []
    for start, report in _compiled(records, results, "cycles", "unread"):
        if "unread" in report:
            rows.append((*start, *["not read"] * 5))
            continue
        moved = report["collectives"]
        total = max(1, report["cycles"]["total"])
        rows.append(
            (
                *start,
                _estimate(report),
                sum(row["count"] for row in moved),
                f"{sum(row['bytes'] for row in moved) / 1e6:.1f}",
                f"{report['copies']['cycles'] / total:.0%}",
                sum(report["wide_arithmetic"].values()) or "none",
            )
        )
    return _table(_HEAD, rows) if rows else ""


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
        rows.append(
            (
                *start,
                ", ".join(f"{name.removeprefix('__')} {n}" for name, n in calls.most_common()) or "none",
                ", ".join(f"{kind} {n}" for kind, n in bits.items()) or "none",
                _wide(report["kernels"]),
                sum(row["count"] for row in moved),
                f"{sum(row['bytes'] for row in moved) / 1e6:.1f}",
            )
        )
    return _table(_GPU_HEAD, rows) if rows else ""


def _effort(records: list[dict], results: Path) -> str:
    """The most expensive compilation of each benchmark, for TPUs and for GPUs."""
    dearest: dict[tuple[str, str], dict] = {}
    for record in records:
        family = "TPU" if record["kind"].startswith("tpu") else "GPU"
        for report in series.reports(record, results).values():
            if "processor_seconds" in report:
                one = dearest.setdefault((record["benchmark"], family), report)
                if report["processor_seconds"] > one["processor_seconds"]:
                    dearest[record["benchmark"], family] = report
    rows = [
        (*place, f"{report['processor_seconds']:.0f}", f"{report['compiler_gigabytes']:.1f}")
        for place, report in sorted(dearest.items())
    ]
    return _table(("benchmark", "for", "seconds", "GB"), rows)


def _wide(kernels: dict) -> str:
    """The layers whose products have operands wider than 16 bits, in a program where other products use 16 bits."""
    if not {"f16", "bf16"} & kernels["matrix_types"].keys():
        return "all"
    return ", ".join(f"{layer} {n}" for layer, n in kernels["wide_matrices"].items()) or "none"


def _compiled(records: list[dict], results: Path, *parts: str) -> list[tuple[tuple, dict]]:
    """Yields (first cells of a row, report) for each program whose report has one of `parts`."""
    found = []
    for record in records:
        for name, report in series.reports(record, results).items():
            if any(part in report for part in parts):
                needed, held = (round(report[key] / 2**20) for key in ("needed_bytes", "device_bytes"))
                start = (
                    f"{record['benchmark']} `{record['system']}`",
                    name,
                    record["kind"],
                    record["replicas"],
                    f"{needed} of {held}",
                    "yes" if report["fits"] else "**no**",
                )
                found.append((start, report))
    return found


def _table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(map(str, head)) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])
