"""Compiles the steps of every preset for a TPU or GPU, one after another, and keeps which result belongs to which.

A preset's record, results/presets/BENCHMARK-SYSTEM.json, names the results of its programs, and says why the last
attempt failed, if it did.
Presets with the same program share a result. A series that was stopped goes on with the presets that have no record.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from common.config import benchmarks
from common.errors import UserError
from common.files import write_atomically
from systems.compile import run
from systems.compile.targets import kind_of_preset, target

# By the work of compiling one program.
CHEAPEST_FIRST = ("mnist", "ptb", "resnet", "ssd", "maskrcnn", "gnmt", "transformer", "tsm_kinetics")


def presets(chosen: Sequence[str] = CHEAPEST_FIRST) -> Iterator[tuple[str, str, str]]:
    """Yields (benchmark, system, kind of device) of every preset whose machine has TPUs or GPUs."""
    for benchmark in chosen:
        found = benchmarks.module(benchmark, "presets").PRESETS
        for system, config in sorted(found.items(), key=lambda item: (item[1].num_replicas, item[0])):
            try:
                yield benchmark, system, kind_of_preset(config)
            except UserError:  # A machine without either.
                continue


def is_wanted(name: str, chosen: str) -> bool:
    """Whether the step `name`, "train" or "train-2", is among those `chosen`: "both", "train", or itself."""
    return chosen in ("both", name, name.partition("-")[0])


def record_of(benchmark: str, system: str, results: Path = run.RESULTS) -> Path:
    """Returns the file of a preset's record."""
    return results / "presets" / f"{benchmark}-{system}.json"


def compile_preset(
    benchmark: str,
    system: str,
    kind: str,
    program: str,
    say: Callable[[str], None],
    results: Path = run.RESULTS,
    made: Path | None = None,
) -> dict[str, Any]:
    """Compiles a preset's programs, writes its record and returns it.

    Args:
      benchmark, system, kind: the preset and its device.
      program: "train", "eval", "both", or the name of one of several shapes, "train-2".
      say: prints a line of progress.
      results: where results and records are.
      made: an export of the preset that is there already.

    Returns:
      {"benchmark", "system", "kind", "replicas", "programs": {name: name of its result}, "partial": steps of which only
      some shapes are compiled, "error": why this attempt failed; programs are then those of an earlier one}.
    """
    with tempfile.TemporaryDirectory(prefix="compile-") as scratch:
        try:
            folder = made or Path(scratch) / "export"
            manifest = (
                json.loads((folder / "manifest.json").read_text())
                if made
                else run.export(benchmark, system, folder, [], say, program)
            )
            goal = target(kind, int(manifest.get("num_replicas", 1)))
            found = {
                one["name"]: run.compiled(folder, manifest, one, goal, say, results)
                for one in manifest["programs"]
                if is_wanted(one["name"], program)
            }
        except UserError as error:
            before = _read(record_of(benchmark, system, results))
            earlier = before if before.get("programs") else {}
            return _write(benchmark, system, {**earlier, "kind": kind, "error": str(error)}, results)
    return keep(benchmark, system, kind, program, found, results)


def keep(
    benchmark: str, system: str, kind: str, program: str, found: dict[str, dict], results: Path = run.RESULTS
) -> dict[str, Any]:
    """Writes the record of a preset of whose programs these are the reports, and returns it.

    One of several shapes, "train-2", leaves it "partial" until all "train" programs are compiled in one call.
    """
    place = record_of(benchmark, system, results)
    # Steps of the other kind may have been compiled before.
    before = _read(place)
    programs = before.get("programs", {}) | {name: run.name_of(report) for name, report in found.items()}
    # A step without an exchange is compiled for one replica.
    replicas = max([before.get("replicas", 0), *(report["replicas"] for report in found.values())])
    rest = {"kind": kind, "replicas": replicas, "programs": programs}
    if partial := _partial(before, program):
        rest["partial"] = sorted(partial)
    return _write(benchmark, system, rest, results)


def _partial(before: dict[str, Any], program: str) -> set[str]:
    """Steps, "train" or "eval", of which some shapes alone are compiled, when `program` is added to a record."""
    partial, (step, _, shape) = set(before.get("partial", ())), program.partition("-")
    if not shape:
        return partial - ({"train", "eval"} if step == "both" else {step})
    return partial if program in before.get("programs", {}) else partial | {step}


def _read(place: Path) -> dict[str, Any]:
    return json.loads(place.read_text()) if place.exists() else {}


def _write(benchmark: str, system: str, rest: dict[str, Any], results: Path) -> dict[str, Any]:
    found, place = {"benchmark": benchmark, "system": system} | rest, record_of(benchmark, system, results)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place, (json.dumps(found, indent=1) + "\n").encode())
    return found


def prune(results: Path = run.RESULTS) -> None:
    """Removes results that no record names: of programs as they were before a change of the code."""
    records = [json.loads(place.read_text()) for place in (results / "presets").glob("*.json")]
    named = {name for record in records for name in record.get("programs", {}).values()}
    for place in results.glob("*.json"):
        if place.stem not in named:
            place.unlink()


def compile_all(
    chosen: Sequence[str],
    program: str,
    again: bool,
    say: Callable[[str], None],
    results: Path = run.RESULTS,
) -> int:
    """Compiles every preset of the benchmarks that has no record; returns how many have a program that misses.

    With `again`, those with a record too: a preset's program follows the code, and only what has changed is compiled.
    Results that no record names are removed, unless a preset failed before its compilation.
    """
    for kind in {kind for _, _, kind in presets(chosen)}:
        run.versions(target(kind, 1).platform)  # A missing compiler is said before the first export.
    missed, failed = 0, False
    for benchmark, system, kind in presets(chosen):
        place = record_of(benchmark, system, results)
        if place.exists() and not again:
            found = json.loads(place.read_text())
            say(f"{benchmark} {system}: has a record, {place.name}")
        else:
            found = compile_preset(benchmark, system, kind, program, say, results)
            failed = failed or "error" in found
        reason = misses(found, results)
        say(f"{benchmark} {system}: {reason or 'compiles and fits'}")
        missed += bool(reason)
    if not failed:
        prune(results)
    return missed


def reports(record: dict[str, Any], results: Path = run.RESULTS) -> dict[str, dict]:
    """Returns {name of a program: its report} of a preset's record."""
    return {
        name: json.loads((results / f"{file}.json").read_text())
        for name, file in record.get("programs", {}).items()
    }


def misses(record: dict[str, Any], results: Path = run.RESULTS) -> str:
    """Says what the compiler has against a preset; '' where all its programs compile and fit."""
    if "error" in record:
        return record["error"]
    for name, report in reports(record, results).items():
        if "error" in report:
            return f"{name} does not compile: {report['error']}"
        if not report["fits"]:
            needed, held = (report[part] / 2**30 for part in ("needed_bytes", "device_bytes"))
            return f"{name} does not fit: {needed:.1f} of {held:.0f} GiB"
    if "partial" in record:
        names = ", ".join(sorted(record["programs"]))
        return f"compiled are {names} alone; compile all of {' and '.join(record['partial'])}"
    return ""
