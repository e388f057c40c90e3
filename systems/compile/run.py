"""Exports a preset's steps and has them compiled, each in a process of its own; keeps results by program."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import INSTALLED, ROOT, write_atomically
from systems.compile import hlo
from systems.compile.targets import Target

RESULTS = Path(__file__).parent / "results"
_PACKAGE = __package__.partition("systems")[0]  # "timetotrain." in a wheel.
_NEEDS = {"tpu": "libtpu", "cuda": "jax_plugins"}


def compiler_python(platform: str) -> str:
    """The interpreter that has jax and the platform's compiler: this one, or that of `make aot`.

    Raises:
      UserError: neither has it.
    """
    if find_spec("jax") and find_spec(_NEEDS[platform]):
        return sys.executable
    made = ROOT / ".cache" / "aot" / "bin" / "python"
    if made.exists() and not INSTALLED:
        return str(made)
    raise UserError(
        f"the compiler for {platform} is not installed ({_NEEDS[platform]}); run `make aot`, which needs no device"
    )


def export(benchmark: str, system: str, folder: Path, flags: list[str], say: Callable[[str], None]) -> dict:
    """Writes the steps of one replica into `folder` by the benchmark's own command; returns the manifest.

    Raises:
      UserError: the command fails; its last line says why.
    """
    command = [
        sys.executable,
        "-m",
        f"{_PACKAGE}{benchmark}",
        f"--system={system}",
        f"--export={folder}",
        "--export_reference=none",
    ]
    say(f"exporting {benchmark} {system}")
    done = subprocess.run([*command, *flags], cwd=None if INSTALLED else ROOT, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise UserError(f"{benchmark} --system={system}: the export fails: {last.removeprefix('error: ')}")
    return json.loads((folder / "manifest.json").read_text())


def digest_of(artifact: Path) -> str:
    """Identifies a program: 16 digits of its SHA-256."""
    return hashlib.sha256(artifact.read_bytes()).hexdigest()[:16]


def compiled(
    folder: Path,
    manifest: dict,
    program: dict,
    target: Target,
    say: Callable[[str], None],
    results: Path = RESULTS,
) -> dict[str, Any]:
    """The compiler's report on one program of an export; taken from `results` where it is there.

    Returns:
      {"digest", "target", "topology", "replicas", "fits", "memory", "cycles", "collectives", ...}, or with "error".

    Raises:
      UserError: the compiler is missing or its process dies.
    """
    replicas = int(manifest.get("num_replicas", 1))
    artifact = folder / program["file"]
    identity = {
        "digest": digest_of(artifact),
        "target": target.name,
        "topology": target.topology,
        "replicas": replicas,
    }
    place = results / f"{identity['digest']}-{target.name}-{replicas}.json"
    if place.exists():
        found = json.loads(place.read_text())
        say(f"{program['name']}: compiled before, by {found.get('versions', {})}")
        return found
    say(f"{program['name']}: compiling for {target.topology}, {replicas} replicas")
    with tempfile.TemporaryDirectory() as scratch:
        raw = _in_child(artifact, program, target, replicas, Path(scratch))
        text = Path(scratch) / "program.txt"
        found = identity | raw
        if "error" not in raw:
            found |= _read(hlo.Program(text.read_text()), raw, target)
    results.mkdir(parents=True, exist_ok=True)
    write_atomically(place, (json.dumps(found, indent=1) + "\n").encode())
    return found


def _in_child(artifact: Path, program: dict, target: Target, replicas: int, scratch: Path) -> dict[str, Any]:
    request = {
        "artifact": str(artifact.resolve()),
        "program": program,
        "replicas": replicas,
        "text": str(scratch / "program.txt"),
        **{
            k: v
            for k, v in dataclasses.asdict(target).items()
            if k in ("platform", "topology", "target_config")
        },
    }
    (scratch / "request.json").write_text(json.dumps(request))
    answer = scratch / "result.json"
    command = [compiler_python(target.platform), "-m", f"{_PACKAGE}systems.compile.worker"]
    done = subprocess.run(
        [*command, str(scratch / "request.json"), str(answer)],
        cwd=None if INSTALLED else ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": ""},
    )
    if not answer.exists():
        # XLA ends the process where a check of its own fails.
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return {
            "error": f"the compiler's process ended with {done.returncode}: {lines[-1] if lines else 'no output'}"[
                :500
            ]
        }
    raw = json.loads(answer.read_text())
    if "missing" in raw:
        raise UserError(f"the compiler needs the package {raw['missing']}; run `make aot`")
    return raw


def _read(program: hlo.Program, raw: dict[str, Any], target: Target) -> dict[str, Any]:
    memory = raw["memory"]
    # Results that take the place of arguments need no memory of their own.
    needed = (
        memory["argument"] + memory["output"] - memory["alias"] + memory["temp"] + memory["generated_code"]
    )
    found: dict[str, Any] = {
        "needed_bytes": needed,
        "device_bytes": target.memory,
        "fits": needed <= target.memory,
        "collectives": hlo.collectives(program),
        "copies": hlo.copies(program),
        "wide_arithmetic": hlo.wide_arithmetic(program),
    }
    if target.platform == "cuda":
        return found | {"kernels": hlo.kernels(program)}
    spent = hlo.cycles(program)
    # Every custom call without a cost counts as minus one second (aot: X64SplitLow, X64SplitHigh, X64Combine).
    uncosted = sum(1 for one, _ in program.scheduled() if one.opcode == "custom-call" and "X64" in one.rest)
    seconds = raw["cost"].get("optimal_seconds")
    found["cycles"] = spent
    found["estimated_ms"] = round(spent["total"] / target.megahertz / 1e3, 3) if target.megahertz else None
    found["optimal_ms"] = None if seconds is None else round(1e3 * (seconds + uncosted), 3)
    return found
