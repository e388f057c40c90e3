"""Runs an exported training or evaluation step on the accelerator at hand, checks it and times it.

Needs numpy and jax (any build: CPU, CUDA, TPU), and no TensorFlow; docs/replay.md says more.

    python -m resnet --system=v100-8 --config.precision=bf16 --export=DIR          # where TensorFlow is
    python bench/replay.py DIR [--steps N] [--peak TFLOPS] [--profile DIR] [--json FILE] [--torch PYTHON]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.export import rules  # noqa: E402

FORMAT = 1
# Dense matrix products per second, in 1e12, by a part of the device's name and by precision (fp32 on NVIDIA's Ampere
# and later is TF32): the vendors' data sheets, without sparsity.
PEAKS = {
    "H200": {"bf16": 989, "fp16": 989, "fp32": 494.5, "fp64": 67},
    "H100": {"bf16": 989, "fp16": 989, "fp32": 494.5, "fp64": 67},
    "A100": {"bf16": 312, "fp16": 312, "fp32": 156, "fp64": 19.5},
    "V100": {"fp16": 125, "fp32": 15.7, "fp64": 7.8},
    "TPU v2": {"bf16": 22.5},
    "TPU v3": {"bf16": 61.5},
    "TPU v4": {"bf16": 275},
    "TPU v5p": {"bf16": 459},
    "TPU v5": {"bf16": 197},
    "TPU v6": {"bf16": 918},
}
# Relative, of a loss: of the first, and of the two that follow. A device other than the reference's rounds in other
# places, and fp32 products may be TF32 there.
TOLERANCES = {"fp64": (1e-9, 1e-6), "fp32": (1e-6, 1e-6), "bf16": (2e-2, 2e-2), "fp16": (5e-3, 5e-3)}
ELSEWHERE = {"fp32": (2e-3, 1e-2)}
# Of the weights after a step, relative to their norm. Below 64 bits an ill-conditioned network's gradients differ by
# percents between two correct compilations, so that nothing is asked of them.
STATE_TOLERANCE = {"fp64": 1e-9}


class Replay:
    """A program of an export, compiled for one device, and its buffers there."""

    def __init__(self, folder: Path, manifest: dict, program: dict):
        import jax

        self.manifest, self.program = manifest, program
        self._stored = np.load(folder / "arrays.npz")
        self._about = {a["name"]: a for a in [*manifest["state"], *program["inputs"]]}
        arguments = [jax.ShapeDtypeStruct(a["shape"], a["dtype"]) for a in program["arguments"]]
        results = [jax.ShapeDtypeStruct(r["shape"], r["dtype"]) for r in program["results"]]
        names = [a["name"] for a in program["arguments"]]
        updates = [r["updates"] for r in program["results"]]
        donated = tuple(i for i, name in enumerate(names) if name in updates)
        call = loaded((folder / program["file"]).read_bytes(), arguments, results)
        began = time.perf_counter()
        self.compiled = jax.jit(call, donate_argnums=donated).lower(*arguments).compile()
        self.compile_seconds = time.perf_counter() - began
        self._written = [(i, names.index(name)) for i, name in enumerate(updates) if name]
        self.buffers: list[Any] = []
        self.reset()

    def reset(self) -> None:
        """Puts the arguments' first values onto the device, made by their rules."""
        import jax

        self.buffers.clear()
        self.buffers += [jax.device_put(self._first(a["name"])) for a in self.program["arguments"]]

    def _first(self, name: str) -> np.ndarray:
        about = self._about[name]
        return rules.make(about["rule"], about["shape"], about["dtype"], self._stored)

    def step(self) -> list[Any]:
        """One call; what it updates is put where it was, in the same memory."""
        results = self.compiled(*self.buffers)
        for result, argument in self._written:
            self.buffers[argument] = results[result]
        return results

    def check(self) -> dict[str, Any]:
        """The first steps, or the evaluation, beside the reference's."""
        expected = self.program["reference"] or {}
        if self.program["kind"] == "eval":
            results = zip(self.program["results"], self.step())
            found = {r["name"]: np.asarray(x, np.float64) for r, x in results if not r["updates"]}
            report: dict[str, Any] = {
                "outputs": {name: rules.digest(x, rules.key_of(name)) for name, x in found.items()}
            }
            if expected:
                errors = {n: rules.distance(report["outputs"][n], d) for n, d in expected["outputs"].items()}
                report["output_errors"] = errors
            return report
        losses, state = [], {}
        for i in range(max(3, len(expected.get("losses", ())))):
            losses.append(float(self.step()[0]))
            if i == 0 and expected:
                state = self._state_errors(expected["state"])
        report = {"losses": losses, **state}
        if expected:
            report["expected_losses"] = expected["losses"]
            report["loss_errors"] = [abs(a - b) / abs(b) for a, b in zip(losses, expected["losses"])]
        return report

    def _state_errors(self, expected: dict) -> dict[str, Any]:
        """The largest error of a weight, slot or statistic after the first step, and of its change."""
        worst = {"after": (0.0, ""), "change": (0.0, "")}
        for argument, buffer in zip(self.program["arguments"], self.buffers):
            name = argument["name"]
            if name not in expected:
                continue
            key, after = rules.key_of(name), np.asarray(buffer, np.float64)
            arrays = {"after": after, "change": after - self._first(name)}
            for kind, array in arrays.items():
                error = rules.distance(rules.digest(array, key), expected[name][kind])
                if not error <= worst[kind][0]:
                    worst[kind] = error, name
        return {
            "state_error": {"relative": worst["after"][0], "of": worst["after"][1]},
            "change_error": {"relative": worst["change"][0], "of": worst["change"][1]},
        }

    def values(self) -> dict[str, np.ndarray]:
        """The state on the device."""
        names = [a["name"] for a in self.program["arguments"]]
        state = {a["name"] for a in self.manifest["state"]}
        return {n: np.asarray(b) for n, b in zip(names, self.buffers) if n in state}

    def time(self, warmup: int, rounds: int, steps: int) -> list[float]:
        """Seconds of a step, one figure a round. The steps of a round are issued without waiting; the clock stops when
        the last one's results are there.
        """
        for _ in range(warmup):
            results = self.step()
        results[0].block_until_ready()
        seconds = []
        for _ in range(rounds):
            began = time.perf_counter()
            for _ in range(steps):
                results = self.step()
            for result in results:
                result.block_until_ready()
            seconds.append((time.perf_counter() - began) / steps)
        return seconds

    def profile(self, folder: str, steps: int) -> None:
        """Writes a trace of some steps, for TensorBoard or Perfetto."""
        import jax

        with jax.profiler.trace(folder):
            for _ in range(steps):
                results = self.step()
            results[0].block_until_ready()


def loaded(artifact: bytes, arguments: list[Any], results: list[Any]) -> Callable:
    """A jax function that is the artifact's `main`.

    The public way into jax for StableHLO that another framework wrote: an export of an empty function of the same
    signature whose program is replaced.
    """
    import jax
    import jax.export
    import jax.numpy as jnp

    def empty(*_: Any) -> list[Any]:
        return [jnp.zeros(r.shape, r.dtype) for r in results]

    platforms = [jax.export.default_export_platform()]
    exported = jax.export.export(jax.jit(empty, keep_unused=True), platforms=platforms)(*arguments)
    return dataclasses.replace(exported, mlir_module_serialized=artifact).call


def speed(replay: Replay, seconds: list[float], peak: float | None) -> dict[str, Any]:
    """What the measured seconds of a step mean."""
    manifest, kind = replay.manifest, replay.program["kind"]
    median, flops = statistics.median(seconds), replay.program["cost"]["matrix_flops"]
    if replay.program["cost"]["loops"] and manifest["forward_flops_per_example"]:
        # A loop's body is counted once in the program: go by the model, a backward pass being two forward ones.
        flops = (
            manifest["forward_flops_per_example"] * manifest["batch"][kind] * (3 if kind == "train" else 1)
        )
    analysis = replay.compiled.cost_analysis() or {}
    analysis = analysis[0] if isinstance(analysis, list) else analysis
    memory = replay.compiled.memory_analysis()
    parts = ("argument_size_in_bytes", "output_size_in_bytes", "alias_size_in_bytes", "temp_size_in_bytes")
    return {
        "ms": 1000 * median,
        "ms_of_rounds": [round(1000 * s, 3) for s in seconds],
        "examples_per_second": manifest["batch"][kind] / median,
        "matrix_tflop": flops / 1e12,
        "tflops": flops / 1e12 / median,
        "peak_tflops": peak,
        "share_of_peak": flops / 1e12 / median / peak if peak else None,
        "compiler_tflop": analysis.get("flops", math.nan) / 1e12,
        "compiler_gb_accessed": analysis.get("bytes accessed", math.nan) / 1e9,
        "memory_gb": {part.removesuffix("_in_bytes"): getattr(memory, part, 0) / 1e9 for part in parts},
        "device_memory": _device_memory(),
        "compile_seconds": replay.compile_seconds,
    }


def _device_memory() -> dict[str, float]:
    import jax

    stats = jax.devices()[0].memory_stats() or {}
    return {f"{k}_gb": stats[k] / 1e9 for k in ("peak_bytes_in_use", "bytes_limit") if k in stats}


def verdict(report: dict, precision: str, same_platform: bool, tolerance: float | None) -> list[str]:
    """What differs more than it may."""
    allowed = TOLERANCES[precision] if same_platform else ELSEWHERE.get(precision, TOLERANCES[precision])
    allowed = (tolerance, tolerance) if tolerance is not None else allowed
    wrong = []
    for i, error in enumerate(report.get("loss_errors", ())):
        bound = allowed[min(i, 1)]
        if not error <= bound:
            wrong.append(
                f"loss {i + 1} is {report['losses'][i]!r}, {report['expected_losses'][i]!r} expected: {error:.2g}, "
                f"{bound:.0e} allowed"
            )
    bound = STATE_TOLERANCE.get(precision)
    for what in ("state_error", "change_error"):
        if bound and what in report and not report[what]["relative"] <= bound:
            wrong.append(
                f"{what}: {report[what]['of']} by {report[what]['relative']:.2g}, {bound:.0e} allowed"
            )
    if bound:
        for name, error in report.get("output_errors", {}).items():
            if not error <= bound:
                wrong.append(f"{name} by {error:.2g}, {bound:.0e} allowed")
    return wrong


def read(folder: Path) -> dict:
    """The manifest; ends the program where there is none that can be read."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
    except FileNotFoundError:
        sys.exit(f"error: {path}: no such file; give the folder that python -m BENCHMARK --export=DIR wrote")
    except (ValueError, OSError) as error:
        sys.exit(f"error: {path}: {error}; export it again")
    if manifest.get("format") != FORMAT:
        sys.exit(f"error: {path}: format {manifest.get('format')}, {FORMAT} expected; export it again")
    return manifest


def peak_of(device: Any, precision: str) -> float | None:
    kind = device.device_kind
    return next((peaks.get(precision) for name, peaks in PEAKS.items() if name in kind), None)


def torch_rows(python: str, folder: Path, options: argparse.Namespace) -> list[dict]:
    """What replay_torch.py measures, in its own interpreter."""
    script = [python, str(ROOT / "bench" / "replay_torch.py"), str(folder)]
    sizes = ["--warmup", options.warmup, "--rounds", options.rounds, "--steps", options.steps]
    done = subprocess.run([*script, *map(str, sizes)], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"torch: left out: {(done.stderr.strip().splitlines() or ['no message'])[-1]}", file=sys.stderr)
        return []
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def run(folder: Path, manifest: dict, program: dict, options: argparse.Namespace) -> dict[str, Any]:
    """Checks and times one program."""
    import jax

    device, precision = jax.devices()[0], manifest["precision"]
    replay = Replay(folder, manifest, program)
    report = {"program": program["name"], **replay.check()}
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


def show(report: dict) -> None:
    """The report, for people."""
    print(f"{report['program']}:")
    if "loss_errors" in report:
        worst = max(report["loss_errors"])
        print(
            f"  losses {', '.join(f'{x:.9g}' for x in report['losses'])}; at most {worst:.2g} from the manifest's"
        )
        state, change = report["state_error"], report["change_error"]
        print(
            f"  state after a step: {state['relative']:.2g}, its change: {change['relative']:.2g} ({change['of']})"
        )
    elif "losses" in report:
        print(
            f"  losses {', '.join(f'{x:.9g}' for x in report['losses'])}; the manifest has none to compare with"
        )
    for name, error in report.get("output_errors", {}).items():
        print(f"  {name}: {error:.2g} from the manifest's")
    if "ms" in report:
        share = f", {report['share_of_peak']:.1%} of the peak" if report["share_of_peak"] else ""
        memory = report["memory_gb"]
        print(f"  {report['ms']:.2f} ms, {report['examples_per_second']:.1f} examples/s")
        print(f"  {report['tflops']:.3g} TFLOP/s of {report['matrix_tflop']:.4g} in matrix products{share}")
        print(f"  {memory['argument_size']:.3g} GB of arguments, {memory['temp_size']:.3g} GB besides")
    for line in report["differs"]:
        print(f"  DIFFERS: {line}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="what python -m BENCHMARK --export=DIR wrote")
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
    parser.add_argument(
        "--torch", metavar="PYTHON", help="an interpreter with PyTorch: its figures, in the same run"
    )
    options = parser.parse_args()
    manifest = read(options.folder)
    programs = [p for p in manifest["programs"] if options.program in (p["name"], None)]
    programs = programs if options.program else [p for p in programs if p["kind"] == "train"]
    if not programs:
        known = ", ".join(p["name"] for p in manifest["programs"])
        reason = manifest["refused"].get(options.program, f"known: {known}")
        sys.exit(f"error: --program={options.program}: not in {options.folder}; {reason}")
    # First: jax keeps most of a GPU's memory once it has started.
    torch = torch_rows(options.torch, options.folder, options) if options.torch else []
    try:
        import jax
    except ImportError:
        sys.exit("error: no jax here; pip install jax, or 'jax[cuda12]' for NVIDIA's GPUs")
    jax.config.update("jax_enable_x64", True)
    device = jax.devices()[0]
    about = {
        key: manifest[key] for key in ("benchmark", "model", "system", "precision", "batch", "parameters")
    }
    versions = {**manifest["versions"], "jax": jax.__version__, "numpy_here": np.__version__}
    machine = {"platform": device.platform, "device": device.device_kind, "devices": len(jax.devices())}
    print(f"{about['benchmark']} {about['system']}, {about['precision']}, batch {about['batch']['train']}")
    print(f"on {machine['device']} ({machine['platform']}), jax {jax.__version__}")
    reports = []
    for program in programs:
        reports.append(run(options.folder, manifest, program, options))
        show(reports[-1])
    for row in torch:
        print(f"torch {row['mode']}: {row['ms']:.2f} ms, {row['examples_per_second']:.1f} examples/s")
    if options.json:
        whole = {**about, **machine, "versions": versions, "programs": reports, "torch": torch}
        Path(options.json).write_text(json.dumps(whole, indent=1) + "\n")
    sys.exit(any(report["differs"] for report in reports))


if __name__ == "__main__":
    main()
