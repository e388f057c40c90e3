"""Runs an exported training or evaluation step on the accelerator at hand, checks it and times it.

Needs numpy and jax (any build: CPU, CUDA, TPU), but not TensorFlow; docs/replay.md says more.

    python -m resnet --system=v100-8 --config.precision=bf16 --export=DIR          # where TensorFlow is
    python -m lab.bench.replay DIR [--steps N] [--peak TFLOPS] [--profile DIR] [--json FILE]
"""

import argparse
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from common.distributed import pjrt_program
from lab.bench.harness.figures import EXACT_FLAGS, peak_of, show, speed, verdict
from lab.bench.harness.replayed import Replay

FORMAT = 2


def read(folder: Path, values: bool = True) -> dict:
    """Returns the manifest; ends the program if there is none, it cannot be read, or it lacks wanted `values`."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
    except FileNotFoundError:
        sys.exit(f"error: {path}: no such file; give the folder that python -m BENCHMARK --export=DIR wrote")
    except (ValueError, OSError) as error:
        sys.exit(f"error: {path}: {error}; export it again")
    if manifest.get("format") != FORMAT:
        sys.exit(f"error: {path}: format {manifest.get('format')}, {FORMAT} expected; export it again")
    if values and not manifest.get("values", True):
        sys.exit(
            f"error: {path}: an export without values, to compile; export it again without --noexport_values"
        )
    if manifest["num_replicas"] > 1 and not all("partitioned_file" in p for p in manifest["programs"]):
        sys.exit(f"error: {path}: a program of several replicas without partitioned_file; export it again")
    return manifest


def devices(count: int, precision: str) -> list[Any]:
    """Returns jax's devices, set up for programs of a precision; ends the program if there are fewer than `count`."""
    pjrt_program.prepare(count)
    if precision in EXACT_FLAGS:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {EXACT_FLAGS[precision]}".strip()
    try:
        import jax
    except ImportError:
        sys.exit("error: no jax here; pip install jax, or 'jax[cuda12]' for NVIDIA's GPUs")
    jax.config.update("jax_enable_x64", True)
    present = jax.devices()
    if len(present) < count:
        sys.exit(
            f"error: a program of {count} replicas, and {len(present)} devices here; export it with "
            f"--config.num_replicas={len(present)}, or one replica alone with --config.replicas=single"
        )
    return present


def run(folder: Path, manifest: dict, program: dict, options: argparse.Namespace) -> dict[str, Any]:
    """Checks and times one program."""
    import jax

    device, precision = jax.devices()[0], manifest["precision"]
    replay = Replay(folder, manifest, program)
    replay.compile()
    report = {"program": program["name"], "chooses": manifest.get("chooses", False), **replay.check()}
    computed_by = (program["reference"] or {}).get("computed_by", "")
    same = device.platform == "cpu" and "CPU" in computed_by
    report["differs"] = verdict(report, precision, same, options.tolerance)
    if options.save:
        replay.reset()
        replay.step()
        np.savez(options.save, **{name.replace("/", "."): value for name, value in replay.values().items()})
    if options.steps:
        seconds = replay.time(options.warmup, options.rounds, options.steps)
        peak = options.peak or peak_of(device, precision)
        report |= speed(replay, seconds, peak)
    if options.profile:
        replay.profile(options.profile, max(3, options.steps))
    return report


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="what python -m BENCHMARK --export=DIR wrote")
    parser.add_argument("--program", help="one of the export's programs; default: all training steps")
    parser.add_argument("--steps", type=int, default=20, help="steps of a round; 0: check only")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that are timed; the median counts")
    parser.add_argument("--warmup", type=int, default=5, help="steps before the first round")
    parser.add_argument("--peak", type=float, help="the device's TFLOP/s; known for some")
    parser.add_argument(
        "--tolerance", type=float, help="of the losses, relative, in place of the precision's"
    )
    parser.add_argument("--profile", metavar="DIR", help="write a trace")
    parser.add_argument("--save", metavar="FILE", help="write the state after the first step, an npz")
    parser.add_argument("--json", metavar="FILE", help="write the report")
    return parser


def main() -> None:
    options = _parser().parse_args()
    if options.folder is None:  # `make bench` runs every script.
        print("nothing to replay: name a folder that python -m BENCHMARK --export=DIR wrote")
        return
    manifest = read(options.folder)
    programs = [p for p in manifest["programs"] if options.program in (p["name"], None)]
    programs = programs if options.program else [p for p in programs if p["kind"] == "train"]
    if not programs:
        names = ", ".join(p["name"] for p in manifest["programs"])
        reason = manifest["refused"].get(options.program, f"known: {names}")
        sys.exit(f"error: --program={options.program}: not in {options.folder}; {reason}")
    device = devices(manifest["num_replicas"], manifest["precision"])[0]
    about = {
        key: manifest[key]
        for key in ("benchmark", "model", "system", "precision", "batch", "parameters", "num_replicas")
    }
    versions = {**manifest["versions"], "jax": version("jax"), "numpy_here": np.__version__}
    machine = {
        "platform": device.platform,
        "device": device.device_kind,
        "devices": device.client.device_count(),
    }
    name = f"{about['benchmark']} {about['system']}".rstrip()
    copies = f" on each of {manifest['num_replicas']} replicas" if manifest["num_replicas"] > 1 else ""
    print(f"{name}, {about['precision']}, batch {about['batch']['train']}{copies}")
    print(f"on {machine['device']} ({machine['platform']}), jax {versions['jax']}")
    reports = []
    for program in programs:
        reports.append(run(options.folder, manifest, program, options))
        show(reports[-1])
    if options.json:
        whole = {**about, **machine, "versions": versions, "programs": reports}
        Path(options.json).write_text(json.dumps(whole, indent=1) + "\n")
    sys.exit(any(report["differs"] for report in reports))


if __name__ == "__main__":
    main()
