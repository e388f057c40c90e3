"""What the full-size steps launch and move on one H100, according to XLA's compiler: kernels, bytes, copies, loops.

    python -m lab.bench.gpu_programs [--cases gnmt maskrcnn ...] [--label now] [--checkout DIR] [--keep DIR]

This needs no device, and nothing runs. The steps are those of docs/replay.md, in bf16. For ResNet-50 and the
Transformer it also compiles flax's step with the same optimizer. --checkout compiles the steps of another checkout (an
earlier commit) under its own --label; the table in docs/compile.md compares the labels. Without a device XLA cannot
choose cuBLAS and cuDNN kernels by timing them, so a real card's program has different kernels for the products.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from lab.bench.harness import ROOT, scripts
from lab.bench.harness.scripts import head, write
from systems.compile import hlo, launches, run
from systems.compile.targets import target

_ALONE = (
    "--config.precision=bf16",
    "--config.hardware=h100-1",
    "--config.replicas=single",
    "--config.num_replicas=1",
    "--export_reference=none",
    "--export_programs=train",
    "--noexport_values",
)


class Case(NamedTuple):
    """A network's step.

    Attributes:
      title: name and batch.
      system: the preset.
      batch: number of examples.
      flags: flags of the export.
      peers: {name: (contender of lab/bench/contenders, keywords)}.
    """

    title: str
    system: str
    batch: int
    flags: tuple[str, ...] = ()
    peers: dict[str, tuple[str, dict[str, Any]]] = {}


CASES = {
    "gnmt": Case("GNMT, 256 x 48", "tpu-v3-32", 256, ("--config.bucket_limits=48",)),
    "maskrcnn": Case("Mask R-CNN, 4 images", "h100-8", 4),
    "transformer": Case(
        "Transformer, 32 x 256",
        "tpu-v3-32",
        32,
        peers={
            "flax": (
                "jax_transformer",
                {
                    "batch": 32,
                    "length": 256,
                    "sizes": [6, 1024, 4096, 16, 33708, 0.1],
                    "generator": "rbg",
                },
            )
        },
    ),
    "resnet": Case(
        "ResNet-50, 256 images",
        "tpu-v3-32",
        256,
        ("--config.batch_norm_span=256",),
        {"flax": ("jax_resnet", {"batch": 256, "optimizer": "lars"})},
    ),
    "ssd": Case("SSD-300, 128 images", "tpu-v3-32", 128, ("--config.batch_norm_span=128",)),
    "tsm_kinetics": Case("TSM, 16 clips of 8", "summit-1", 16),
}


def export(name: str, case: Case, folder: Path, checkout: Path) -> None:
    """Exports the training step with the checkout's code.

    Raises:
      SystemExit: the export fails.
    """
    sizes = (f"--config.{field}={case.batch}" for field in ("global_batch_size", "eval_batch_size"))
    command = [sys.executable, "-m", name, f"--system={case.system}", f"--export={folder}", *_ALONE]
    if subprocess.run([*command, *sizes, *case.flags], cwd=checkout).returncode:
        sys.exit(f"gpu_programs: {name} was not exported from {checkout}")


def counted(folder: Path, kind: str, keep: Path) -> tuple[dict[str, Any], list[tuple[int, int, int]]]:
    """Compiles the exported step (the first of several shapes) for one device.

    Returns:
      What it launches and moves, and its kernels as launches.groups gives them.

    Raises:
      SystemExit: it does not compile.
    """
    manifest = json.loads((folder / "manifest.json").read_text())
    program = next(p for p in manifest["programs"] if p["name"].startswith("train"))
    place, digest = keep / "report.json", run.digest_of(folder / program["file"])
    report = json.loads(place.read_text()) if place.exists() else {}
    if report.get("digest") != digest or report.get("target") != kind:  # Otherwise it is already compiled.
        report = run.compiled(folder, manifest, program, target(kind, 1), _say, results=folder, keep=keep)
        if "error" in report:
            sys.exit(f"gpu_programs: {report['error']}")
        place.write_text(json.dumps(report))
    (text,) = keep.glob(f"{digest}-*.txt")
    compiled = hlo.Program(text.read_text())
    found = launches.launches(compiled) | {
        "digest": report["digest"],
        "needed_bytes": report["needed_bytes"],
        "compile_processor_seconds": report["processor_seconds"],
        "versions": report["versions"],
    }
    return found, launches.groups(compiled)


def _peers(case: Case, kind: str, python: str, scratch: Path) -> dict[str, Any]:
    found = {}
    for peer, (module, keywords) in case.peers.items():
        folder = scratch / peer
        command = [
            python,
            "-m",
            "lab.bench.contenders.jax_export",
            module,
            folder,
            json.dumps(keywords),
            "cuda",
        ]
        if subprocess.run(list(map(str, command)), cwd=ROOT).returncode:
            sys.exit(f"gpu_programs: {module} was not exported; it needs flax (make aot)")
        found[peer], _ = counted(folder, kind, scratch / f"{peer}-text")
    return found


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = scripts.parser(__doc__, "gpu_programs.json")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--target", default="h100", help="kind of device; default: h100")
    parser.add_argument("--label", default="now", help="of the results; default: now")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="whose steps; default: this one's")
    parser.add_argument("--exports", type=Path, help="folder of exports made before, one for each network")
    parser.add_argument("--peers", action="store_true", help="compile the peers too")
    parser.add_argument("--keep", type=Path, help="keep reports and programs here, and take them from here")
    options = parser.parse_args()
    result = json.loads(options.output.read_text()) if options.output.exists() else {"cases": {}}
    result |= {**head(), "target": options.target, "compiler": run.versions("cuda")}
    for name in options.cases:
        case = CASES[name]
        entry = result["cases"].setdefault(name, {"title": case.title})
        with tempfile.TemporaryDirectory() as scratch:
            folder = options.exports / name if options.exports else Path(scratch) / "export"
            if not options.exports:
                export(name, case, folder, options.checkout)
            keep = options.keep / f"{name}-{options.label}" if options.keep else Path(scratch) / "text"
            entry[options.label], groups = counted(folder, options.target, keep)
            if options.peers:
                python = run.compiler_python("cuda")
                entry.setdefault("peers", {}).update(_peers(case, options.target, python, Path(scratch)))
        print(
            "\n".join([f"{case.title}, {options.label}", *launches.lines(entry[options.label])]), flush=True
        )
        write(result, options.output)


if __name__ == "__main__":
    main()
