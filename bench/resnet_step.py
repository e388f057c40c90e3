"""A full-size ResNet-50 training step beside the same network in tf-models-official, Keras and PyTorch.

Every contender runs in a process of its own and trains the same batch size with the same optimizer, one
replica, all cores; rounds alternate, so that a change of the machine's speed meets all of them. The ratio
that counts is the median over rounds of (their seconds / our seconds) in the same round.

    python bench/resnet_step.py [--batch N] [--rounds N] [--precisions fp32 bf16] [--torch] [--quick]
    [--output FILE]

`--torch` installs PyTorch into .cache/torch-venv on first use. `--quick` is one small round of everything.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _rounds import ROOT, machine, write

TORCH_VENV, TORCH = ROOT / ".cache" / "torch-venv", "torch==2.13.0"
# Their seconds over ours; PyTorch's depends on the precision.
BARS = {
    "tfm_orbit": {"fp32": 1.05, "bf16": 1.05},
    "keras_fit": {"fp32": 1.05, "bf16": 1.05},
    "torch_eager": {"fp32": 1.2, "bf16": 1.1},
}
OVERHEAD_BAR, OVERHEAD_BATCH, OVERHEAD_PIXELS = 0.01, 32, 64
CLASSES = 1000


class Contender:
    """A process that trains when asked to."""

    def __init__(self, name: str, precision: str, batch: int, pixels: int):
        self.name = name
        script = ROOT / "bench" / "_step_contenders.py"
        command = [sys.executable, str(script), name, precision, str(batch), str(pixels)]
        if name == "torch_eager":
            script = ROOT / "bench" / "_torch_resnet.py"
            command = [str(TORCH_VENV / "bin" / "python"), str(script), precision]
            command += [str(batch), str(pixels), str(CLASSES)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.about = self._answer()
        self.steps(1)  # traces and warms up

    def steps(self, count: int) -> dict[str, float]:
        """Seconds per step, wall and processor, over `count` steps."""
        print(count, file=self._process.stdin, flush=True)
        answer = self._answer()
        return {key: answer[key] / count for key in ("seconds", "cpu_seconds")}

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        errors = self._process.stderr.read().strip().splitlines() or ["no message"]
        sys.exit(f"resnet_step: {self.name} ended: {errors[-1]}")


def compare(names: list[str], precision: str, batch: int, pixels: int, rounds: int, steps: int) -> dict:
    """Seconds per step of every contender in alternating rounds, and the ratios to ours."""
    contenders = [Contender(name, precision, batch, pixels) for name in names]
    times: dict[str, list[dict]] = {name: [] for name in names}
    for i in range(rounds):
        # Every second round goes backwards: no contender always follows the same one.
        for contender in contenders if i % 2 == 0 else reversed(contenders):
            times[contender.name].append(contender.steps(steps))
    rows = {}
    for contender in contenders:
        contender.close()
        own = times[contender.name]
        ratios = [t["seconds"] / o["seconds"] for t, o in zip(own, times["ours"])]
        rows[contender.name] = {
            "seconds": statistics.median(t["seconds"] for t in own),
            "cpu_seconds": statistics.median(t["cpu_seconds"] for t in own),
            "images_per_second": batch / statistics.median(t["seconds"] for t in own),
            "rounds_seconds": [round(t["seconds"], 4) for t in own],
            "ratio_to_ours": statistics.median(ratios),
            "bar": BARS.get(contender.name, {}).get(precision),
            "version": contender.about["version"],
        }
    return rows


def overhead(rounds: int) -> dict[str, float]:
    """What the fused loop adds to a step."""
    script = ROOT / "bench" / "_step_contenders.py"
    size = [str(OVERHEAD_BATCH), str(OVERHEAD_PIXELS)]
    command = [sys.executable, str(script), "overhead", str(rounds), *size]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        sys.exit(f"resnet_step: overhead: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return {**json.loads(lines[-1]), "bar": OVERHEAD_BAR}


def ensure_torch() -> None:
    """PyTorch in an environment of its own; its dependencies and ours do not mix."""
    python = TORCH_VENV / "bin" / "python"
    if (
        python.exists()
        and subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0
    ):
        return
    print(f"installing {TORCH} into {TORCH_VENV.relative_to(ROOT)}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(TORCH_VENV)], check=True)
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", TORCH, "numpy"]
    if subprocess.run(install).returncode:
        sys.exit(f"resnet_step: {TORCH} could not be installed; leave out --torch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2, help="training steps per contender and round")
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--torch", action="store_true", help=f"with {TORCH}, installed on first use")
    parser.add_argument("--quick", action="store_true", help="one small round, to see that everything runs")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results" / "resnet_step.json")
    options = parser.parse_args()
    if options.quick:
        options.batch, options.pixels, options.rounds, options.steps = 4, 64, 1, 1
    names = ["ours", "tfm_orbit", "keras_fit", "ours_lars"]
    if options.torch:
        ensure_torch()
        names.append("torch_eager")
    about = {
        "date": datetime.date.today().isoformat(),
        "machine": machine() | {"tf-models-official": version("tf-models-official")},
    }
    settings = {key: getattr(options, key) for key in ("batch", "pixels", "rounds", "steps")}
    result: dict[str, Any] = {**about, "settings": settings, "step": {}}
    for precision in options.precisions:
        rows = compare(names, precision, options.batch, options.pixels, options.rounds, options.steps)
        result["step"][precision] = rows
        for name, row in rows.items():
            bar = f" (bar {row['bar']})" if row["bar"] else ""
            speed = f"{row['seconds']:.3f} s/step, {row['images_per_second']:.2f} images/s"
            print(f"{precision} {name:12} {speed}, {row['ratio_to_ours']:.3f} x ours{bar}", flush=True)
    result["fused_loop"] = overhead(options.rounds)
    print(f"fused loop: {result['fused_loop']['overhead']:+.2%} of a step (bar {OVERHEAD_BAR:.0%})")
    if not options.quick:
        write(result, options.output)


if __name__ == "__main__":
    main()
