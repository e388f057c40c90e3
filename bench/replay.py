"""Runs an exported training or evaluation step on the accelerator at hand, checks it and times it.

Needs numpy and jax (any build: CPU, CUDA, TPU), and no TensorFlow; docs/replay.md says more.

    python -m resnet --system=v100-8 --config.precision=bf16 --export=DIR          # where TensorFlow is
    python bench/replay.py DIR [--steps N] [--peak TFLOPS] [--profile DIR] [--json FILE] [--torch PYTHON]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from _replay_figures import peak_of, show, speed, verdict  # noqa: E402

from common.export import rules  # noqa: E402

FORMAT = 1


class Replay:
    """A program of an export, compiled for one device, and its buffers there."""

    def __init__(self, folder: Path, manifest: dict, program: dict):
        import jax

        self.manifest, self.program = manifest, program
        self._stored = np.load(folder / "arrays.npz")
        described = [*manifest["state"], *manifest["constants"], *program["inputs"]]
        self._about = {a["name"]: a for a in described}
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


def main() -> None:
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
    parser.add_argument(
        "--torch", metavar="PYTHON", help="an interpreter with PyTorch: its figures, in the same run"
    )
    options = parser.parse_args()
    if options.folder is None:  # `make bench` runs every script.
        print("nothing to replay: name a folder that python -m BENCHMARK --export=DIR wrote")
        return
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
    name = f"{about['benchmark']} {about['system']}".rstrip()
    print(f"{name}, {about['precision']}, batch {about['batch']['train']}")
    print(f"on {machine['device']} ({machine['platform']}), jax {jax.__version__}")
    reports = []
    for program in programs:
        reports.append(run(options.folder, manifest, program, options))
        show(reports[-1])
    for row in torch:
        print(f"torch {row['mode']}: {row['ms']:.2f} ms, {row['examples_per_second']:.1f} examples/s")
    # Batches of several lengths are several programs, and PyTorch's is of one.
    if torch and len(reports) == 1 and reports[0].get("ms"):
        reports[0]["of_best_torch"] = min(row["ms"] for row in torch) / reports[0]["ms"]
        print(f"{reports[0]['of_best_torch']:.2f} x the best of torch's speed")
    if options.json:
        whole = {**about, **machine, "versions": versions, "programs": reports, "torch": torch}
        Path(options.json).write_text(json.dumps(whole, indent=1) + "\n")
    sys.exit(any(report["differs"] for report in reports))


if __name__ == "__main__":
    main()
