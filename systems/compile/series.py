"""Compiles presets' steps for a TPU or GPU, one after another, and records which results belong to which preset.

A preset's record (kept by store.py) names the results of its programs and, if the last attempt failed, the reason.
Presets with the same program share a result. A stopped series continues with the presets that have no record.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from systems.compile import run, store
from systems.compile.store import RESULTS
from systems.compile.targets import target

Preset = tuple[str, str, str]  # Benchmark, system, kind of device.


def record_of(benchmark: str, system: str, results: Path = RESULTS) -> dict[str, Any] | None:
    """Returns a preset's record; None if it was never compiled."""
    return store.read(benchmark, results).presets.get(system)


def compile_preset(
    benchmark: str,
    system: str,
    kind: str,
    program: str,
    say: Callable[[str], None],
    results: Path = RESULTS,
) -> dict[str, Any]:
    """Compiles a preset's programs ("train", "eval" or "both"), writes its record and returns it.

    Returns {"benchmark", "system", "kind", "replicas", "programs": {name: name of its result}, "lengths": batch lengths
    of the programs, if there are several, "error": why this attempt failed (the programs are then those of an earlier
    attempt)}.
    """
    with tempfile.TemporaryDirectory(prefix="compile-") as scratch:
        try:
            folder = Path(scratch) / "export"
            manifest = run.export(benchmark, system, folder, [], say, program)
            goal = target(kind, int(manifest.get("num_replicas", 1)))
            by_name = {
                one["name"]: run.compiled(folder, manifest, one, goal, say, results, benchmark=benchmark)
                for one in manifest["programs"]
            }
        except UserError as error:
            before = record_of(benchmark, system, results) or {}
            earlier = before if before.get("programs") else {}
            return _store(benchmark, system, {**earlier, "kind": kind, "error": str(error)}, results)
    return keep(benchmark, system, kind, by_name, lengths(manifest), results)


def lengths(manifest: Mapping[str, Any]) -> list[int]:
    """The maximum length of each batch shape in an export, shortest first; [] if there is only one shape."""
    return list((manifest.get("config") or {}).get("bucket_limits", ()))


def keep(
    benchmark: str,
    system: str,
    kind: str,
    reports_by_program: dict[str, dict],
    shapes: Sequence[int] = (),
    results: Path = RESULTS,
) -> dict[str, Any]:
    """Writes a preset's record of reports and `lengths`, and returns it."""
    # Steps of the other kind may have been compiled earlier.
    before = record_of(benchmark, system, results) or {}
    programs = before.get("programs", {}) | {
        name: store.name_of(report) for name, report in reports_by_program.items()
    }
    # A step without collectives is compiled for one replica.
    replicas = max(
        [before.get("replicas", 0), *(report["replicas"] for report in reports_by_program.values())]
    )
    rest = {"kind": kind, "replicas": replicas, "programs": programs}
    if shapes:
        rest["lengths"] = list(shapes)
    return _store(benchmark, system, rest, results)


def _store(benchmark: str, system: str, rest: dict[str, Any], results: Path) -> dict[str, Any]:
    record = {"benchmark": benchmark, "system": system} | rest
    store.put_preset(record, results)
    return record


def compile_all(
    presets: Iterable[Preset], program: str, again: bool, say: Callable[[str], None], results: Path = RESULTS
) -> int:
    """Compiles every preset that has no record; returns how many presets have a program that misses.

    `again` includes presets with a record: programs follow the code, so only changed programs are recompiled. At the
    end, results that no record names are removed, unless a preset failed before its compilation.
    """
    presets = list(presets)
    for kind in {kind for _, _, kind in presets}:
        run.versions(target(kind, 1).platform)  # Report a missing compiler before the first export.
    missed, failed = 0, False
    for benchmark, system, kind in presets:
        record = None if again else record_of(benchmark, system, results)
        if record:
            say(f"{benchmark} {system}: has a record")
        else:
            record = compile_preset(benchmark, system, kind, program, say, results)
            failed = failed or "error" in record
        reason = misses(record, results)
        say(f"{benchmark} {system}: {reason or 'compiles and fits'}")
        missed += bool(reason)
    if not failed and "-" not in program:
        store.prune(results)
    return missed


def reports(record: dict[str, Any], results: Path = RESULTS) -> dict[str, dict]:
    """Returns {program name: report} for a preset's record."""
    programs = store.read(record["benchmark"], results).programs
    return {name: programs[result] for name, result in record.get("programs", {}).items()}


def misses(record: dict[str, Any], results: Path = RESULTS) -> str:
    """Describes the compiler's objection to a preset; '' if all its programs compile and fit."""
    if "error" in record:
        return record["error"]
    for name, report in reports(record, results).items():
        if "error" in report:
            return f"{name} does not compile: {report['error']}"
        if not report["fits"]:
            needed, capacity = (report[part] / 2**30 for part in ("needed_bytes", "device_bytes"))
            return f"{name} does not fit: {needed:.1f} of {capacity:.0f} GiB"
    return ""
