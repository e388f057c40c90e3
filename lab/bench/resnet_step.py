"""A full-size ResNet-50 training step against the same network in tf-models-official, Keras and PyTorch.

Every contender runs in its own process and trains the same batch size with the same optimizer, on one replica with all
cores. Rounds alternate, so that a change of the machine's speed affects all of them. The result is the median over
rounds of (their seconds / our seconds) in the same round.

    python -m lab.bench.resnet_step [--batch N] [--rounds N] [--precisions fp32 bf16] [--torch] [--quick]
    [--output FILE]

`--torch` installs PyTorch into .cache/torch-venv on first use. `--quick` runs one small round of everything.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from lab.bench.harness import arguments
from lab.bench.harness.interpreters import TORCH, installed_torch
from lab.bench.harness.results import head, write
from lab.bench.harness.rounds import command, compare
from lab.bench.harness.scripts import output_of

NAMES = ("ours", "tfm_orbit", "keras_fit", "ours_lars")
# Minimum ratios of their seconds to ours; PyTorch's depends on the precision.
BARS = {
    "tfm_orbit": {"fp32": 1.05, "bf16": 1.05},
    "keras_fit": {"fp32": 1.05, "bf16": 1.05},
    "torch_eager": {"fp32": 1.2, "bf16": 1.1},
}
OVERHEAD_BAR, OVERHEAD_BATCH, OVERHEAD_PIXELS = 0.01, 32, 64
CLASSES = 1000


def commands(precision: str, batch: int, pixels: int, torch_python: str | None) -> dict[str, list[str]]:
    """Returns the commands of all contenders, including PyTorch's if there is an interpreter for it."""
    settings = [precision, str(batch), str(pixels)]
    found = {name: command("tensorflow_resnet", name, *settings) for name in NAMES}
    if torch_python:
        found["torch_eager"] = command("torch_resnet", *settings, str(CLASSES), python=torch_python)
    return found


def measure(
    precision: str, options: argparse.Namespace, torch_python: str | None
) -> dict[str, dict[str, Any]]:
    """Returns {contender: wall and processor seconds per step, images per second, ratio to ours, bar}."""
    called = commands(precision, options.batch, options.pixels, torch_python)
    rows = compare(called, options.steps, options.rounds, with_cpu=True)
    return {
        name: {
            "seconds": row["seconds"] / options.steps,
            "cpu_seconds": row["cpu_seconds"] / options.steps,
            "images_per_second": options.batch * options.steps / row["seconds"],
            "rounds_seconds": [round(t / options.steps, 4) for t in row["rounds_seconds"]],
            "ratio_to_ours": row["ratio_to_ours"],
            "bar": BARS.get(name, {}).get(precision),
            "version": row["version"],
        }
        for name, row in rows.items()
    }


def overhead(rounds: int) -> dict[str, float]:
    """Measures what the fused loop adds to a step."""
    settings = [str(n) for n in (OVERHEAD_BATCH, OVERHEAD_PIXELS, rounds)]
    printed = output_of("resnet_step", [sys.executable, "-m", "lab.bench.processes.loop_overhead", *settings])
    return {**json.loads(printed.splitlines()[-1]), "bar": OVERHEAD_BAR}


def main() -> None:
    parser = arguments.parser(__doc__, "resnet_step.json", rounds=7)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--steps", type=int, default=2, help="training steps per contender and round")
    arguments.add_precisions(parser, "fp32", "bf16")
    parser.add_argument("--torch", action="store_true", help=f"with {TORCH}, installed on first use")
    arguments.add_quick(parser)
    options = parser.parse_args()
    if options.quick:
        options.batch, options.pixels, options.rounds, options.steps = 4, 64, 1, 1
    torch_python = installed_torch() if options.torch else None
    settings = {key: getattr(options, key) for key in ("batch", "pixels", "rounds", "steps")}
    result: dict[str, Any] = {**head("tf-models-official"), "settings": settings, "step": {}}
    for precision in options.precisions:
        rows = result["step"][precision] = measure(precision, options, torch_python)
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
