"""Exports a preset's steps and compiles them, each in its own process; keeps results by program."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import INSTALLED, ROOT
from systems.compile import hlo, launches, store, targets
from systems.compile.store import RESULTS, name_of
from systems.compile.targets import Target

# `make aot` installs the compilers here.
COMPILERS = Path(sys.prefix) / "aot"
_PACKAGE = __package__.partition("systems")[0]  # "timetotrain." in a wheel.
_NEEDS = {"tpu": "libtpu", "cuda": "jax_plugins"}
_COMPILERS = {"tpu": "libtpu", "cuda": "jaxlib"}  # The package whose version is part of a result's name.
GIGABYTES = 20.0  # A compiler that takes more memory is stopped.
_SECONDS = 0.5  # Time between two memory checks.
_WIDTHS = re.compile(r"\d+$")  # Bits, in a dtype's name.


def compiler_python(platform: str) -> str:
    """The interpreter with jax and the platform's compiler: this one.

    Raises UserError if this interpreter has no such compiler.
    """
    if not (find_spec("jax") and (find_spec(_NEEDS[platform]) or (COMPILERS / _NEEDS[platform]).exists())):
        fix = "pip install 'timetotrain[aot]'" if INSTALLED else "run `make aot`"
        raise UserError(
            f"the compiler for {platform} is not installed ({_NEEDS[platform]}); {fix}, which needs no device"
        )
    return sys.executable


def versions(platform: str) -> dict[str, str]:
    """{package: version} of the platform's compiler. Raises UserError if the compiler is not installed."""
    command = [compiler_python(platform), "-m", f"{_PACKAGE}systems.compile.worker"]
    done = subprocess.run(
        command, cwd=None if INSTALLED else ROOT, capture_output=True, text=True, check=True,
        env=_environment(),
    )  # fmt: skip
    return json.loads(done.stdout)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(COMPILERS) if COMPILERS.exists() else ""}


def export(
    benchmark: str,
    system: str,
    folder: Path,
    flags: list[str],
    say: Callable[[str], None],
    programs: str = "both",
) -> dict:
    """Exports one replica's steps into a new folder with the benchmark's own command; returns the manifest.

    `programs` is "train", "eval" or "both".

    Raises UserError if the command fails; the message is its last line.
    """
    command = [
        sys.executable, "-m", f"{_PACKAGE}{benchmark}", f"--system={system}", f"--export={folder}",
        f"--export_programs={programs}", "--noexport_values",
    ]  # fmt: skip
    say(f"exporting {benchmark} {system}")
    done = subprocess.run([*command, *flags], cwd=None if INSTALLED else ROOT, capture_output=True, text=True)
    if done.returncode < 0:
        why = ": too little memory?" if done.returncode == -signal.SIGKILL else ""
        raise UserError(
            f"{benchmark} --system={system}: the export was ended by signal {-done.returncode}{why}"
        )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise UserError(f"{benchmark} --system={system}: the export fails: {last.removeprefix('error: ')}")
    return json.loads((folder / "manifest.json").read_text())


def digest_of(artifact: Path) -> str:
    """Identifies a program: the first 16 digits of its SHA-256."""
    return hashlib.sha256(artifact.read_bytes()).hexdigest()[:16]


def compiled(
    folder: Path,
    manifest: dict,
    program: dict,
    target: Target,
    say: Callable[[str], None],
    results: Path = RESULTS,
    keep: Path | None = None,
    benchmark: str = "",
) -> dict[str, Any]:
    """Returns the compiler's report on one program of an export, from `results` if it is there.

    Args:
      folder, manifest, program: the export, its manifest, and the program's entry in it.
      target: what to compile for. A program without collectives is the same for any number of replicas, so it is
        compiled for one.
      say: prints a line of progress.
      results: where reports are kept, by program, target, replicas and compiler version.
      keep: folder for the optimized program's text; if given, the program is always recompiled.
      benchmark: the benchmark that owns the report; default: the one that the manifest names, or "other".

    Returns:
      {"digest", "target", "topology", "replicas", "fits", "memory", "cycles", "collectives", ...}, or with "error".

    Raises UserError if the compiler is missing or its process dies.
    """
    replicas = int(manifest.get("num_replicas", 1))
    if not program.get("exchanges", True):
        replicas, target = 1, targets.target(target.name, 1)
    artifact = folder / program["file"]
    identity = {
        "digest": digest_of(artifact),
        "target": target.name,
        "topology": target.topology,
        "replicas": replicas,
    }
    package = _COMPILERS[target.platform]
    identity["compiler"] = f"{package}-{versions(target.platform)[package]}"
    benchmark = benchmark or manifest.get("benchmark") or "other"
    before = store.read(benchmark, results).programs.get(name_of(identity))
    if before and not keep:
        say(f"{program['name']}: compiled before, {name_of(identity)}")
        return before
    say(f"{program['name']}: compiling for {target.topology}, {replicas} replicas")
    with tempfile.TemporaryDirectory() as scratch:
        raw = _in_child(artifact, program, target, replicas, Path(scratch))
        text = Path(scratch) / "program.txt"
        report = identity | raw
        if keep and text.exists():
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{name_of(identity)}.txt").write_text(text.read_text())
        if "error" not in raw:
            report |= {"argument_bytes": _argument_bytes(manifest, program)}
            report |= _memory(raw["memory"], target)
            if "unread" not in raw:
                report |= _read(hlo.Program(text.read_text()), raw, target)
    store.put_program(benchmark, report, results)
    return report


def _argument_bytes(manifest: dict, program: dict) -> dict[str, int]:
    """Bytes of the program's arguments by role: weights, slots, statistics, inputs, ..."""
    roles = {a["name"]: a["role"] for a in (*manifest["state"], *manifest["constants"], *program["inputs"])}
    sizes: dict[str, int] = {}
    for argument in program["arguments"]:
        role, wide = roles.get(argument["name"], "other"), _WIDTHS.search(argument["dtype"])
        size = math.prod(argument["shape"]) * (int(wide[0]) // 8 if wide else 1)
        sizes[role] = sizes.get(role, 0) + size
    return sizes


def _in_child(artifact: Path, program: dict, target: Target, replicas: int, scratch: Path) -> dict[str, Any]:
    request = {
        "artifact": str(artifact.resolve()),
        "program": program,
        "replicas": replicas,
        "text": str(scratch / "program.txt"),
        **{
            k: v
            for k, v in dataclasses.asdict(target).items()
            if k in ("platform", "topology", "target_config", "chip_config")
        },
    }
    (scratch / "request.json").write_text(json.dumps(request))
    answer = scratch / "result.json"
    command = [compiler_python(target.platform), "-m", f"{_PACKAGE}systems.compile.worker"]
    with (scratch / "stderr.txt").open("w") as stderr:
        child = subprocess.Popen(
            [*command, str(scratch / "request.json"), str(answer)], cwd=None if INSTALLED else ROOT,
            stdout=subprocess.DEVNULL, stderr=stderr, env=_environment(),
        )  # fmt: skip
        gigabytes = _watched(child)
    if gigabytes > GIGABYTES:
        return {"error": f"the compiler needs more than {GIGABYTES:.0f} GB of memory and was stopped"}
    if not answer.exists():
        # XLA ends the process if one of its own checks fails.
        lines = [line for line in (scratch / "stderr.txt").read_text().splitlines() if line.strip()]
        last_line = lines[-1] if lines else "no output"
        return {"error": f"the compiler's process ended with {child.returncode}: {last_line}"[:500]}
    raw = json.loads(answer.read_text())
    if "missing" in raw:
        raise UserError(f"the compiler needs the package {raw['missing']}; run `make aot`")
    return raw


def _watched(child: subprocess.Popen) -> float:
    """Waits for the child, stopping it beyond GIGABYTES; returns the largest memory seen, in gigabytes."""
    most = 0.0
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_SECONDS)
            return most
        with contextlib.suppress(OSError, StopIteration):  # No /proc, or the child has just ended.
            lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
            resident = next(line for line in lines if line.startswith("VmRSS"))
            most = max(most, int(resident.split()[1]) * 1024 / 1e9)
        if most > GIGABYTES:
            child.kill()


def _memory(memory: dict[str, int], target: Target) -> dict[str, Any]:
    # Results that alias arguments need no memory of their own.
    needed = (
        memory["argument"] + memory["output"] - memory["alias"] + memory["temp"] + memory["generated_code"]
    )
    return {"needed_bytes": needed, "device_bytes": target.memory, "fits": needed <= target.memory}


def _read(program: hlo.Program, raw: dict[str, Any], target: Target) -> dict[str, Any]:
    report: dict[str, Any] = {
        "collectives": hlo.collectives(program),
        "copies": hlo.copies(program),
        "loop_products": hlo.loop_products(program),
        "branches": hlo.shared_branches(program),
        "wide_arithmetic": hlo.wide_arithmetic(program),
    }
    if target.platform == "cuda":
        return report | {"kernels": hlo.kernels(program), "launches": launches.launches(program)}
    costs = hlo.cycles(program)
    # Every custom call without a cost counts as minus one second (aot: X64SplitLow, X64SplitHigh, X64Combine).
    uncosted = sum(1 for one, _ in program.scheduled() if one.opcode == "custom-call" and "X64" in one.rest)
    seconds = raw["cost"].get("optimal_seconds")
    report["cycles"] = costs
    report["estimated_ms"] = round(costs["total"] / target.megahertz / 1e3, 3) if target.megahertz else None
    report["optimal_ms"] = None if seconds is None else round(1e3 * (seconds + uncosted), 3)
    return report
