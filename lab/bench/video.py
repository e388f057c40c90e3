"""Inference and training of TSM and both I3Ds against the same networks in PyTorch.

    python -m lab.bench.video [--torch-python PYTHON] [--precisions fp32 bf16] [--rounds N] [--quick] [--output FILE]

Each contender is a process with all cores and one batch of full-size clips in memory: 8, 16 and 32 frames of 224
pixels. Rounds alternate over all networks, ours and PyTorch's, so that a change of the machine's speed affects all of
them. The result is the median over rounds of the ratios within a round. The paper's ratios ("Training Kinetics in 15
Minutes", Table 1: 2.0 and 1.5 times the clips of I3D 3x1x1) are for inference at batch 16 on a P100.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
from collections.abc import Mapping
from typing import Any

from lab.bench.harness import arguments
from lab.bench.harness.interpreters import left_out, peers
from lab.bench.harness.results import head, write
from lab.bench.harness.rounds import Contender, alternate, command, ratio
from lab.bench.harness.steps import manifest, on_one_replica
from tsm_kinetics.config import Config
from tsm_kinetics.efficiency import PAPER
from tsm_kinetics.presets import PRESETS

MODELS = ("tsm", "i3d_3x3x3", "i3d_3x1x1")
SLOWEST = "i3d_3x1x1"  # 1.0 in the paper.
MODES = ("infer", "train")
BARS = {"tsm": 1.0, "i3d_3x3x3": 0.9, "i3d_3x1x1": 0.9}  # Minimum ratios of PyTorch's seconds to ours.


def config_of(model: str, precision: str, batch: int, pixels: int) -> Config:
    """Returns the full-size network on one replica, with the paper's optimizer."""
    return on_one_replica(
        PRESETS["summit-1"],
        batch,
        precision,
        model=model,
        image_size=pixels,
        num_train_examples=10_000 * batch,
        num_eval_examples=batch,
    )


def commands(
    mode: str, precision: str, batch: int, pixels: int, torch_python: str | None
) -> dict[tuple[str, str], list[str]]:
    """Returns {(network, contender): command}."""
    found = {}
    for model in MODELS:
        config = config_of(model, precision, batch, pixels)
        clips = {"name": "batch/frames", "shape": [batch, config.frames, pixels, pixels, 3]}
        told = manifest(config, benchmark="tsm_kinetics", programs=[{"inputs": [clips]}])
        found[model, "ours"] = command("tensorflow_video", mode, told)
        if torch_python:
            found[model, "torch"] = command("torch_images", mode, told, python=torch_python)
    return found


def networks(mode: str, precision: str, options: argparse.Namespace, torch_python: str | None) -> dict:
    """Measures a row for each network and mode.

    Raises:
      SystemExit: PyTorch's network and ours have different numbers of parameters.
    """
    batch = options.infer_batch if mode == "infer" else options.train_batch
    called = commands(mode, precision, batch, options.pixels, torch_python)
    contenders = {key: Contender(" ".join(key), command) for key, command in called.items()}
    for model, who in contenders:
        count, own = (contenders[model, name].about["parameters"] for name in (who, "ours"))
        if count != own:
            sys.exit(f"video: {model}: {count} parameters in PyTorch, {own} in ours: not the same network")
    for contender in contenders.values():
        contender.seconds(1)  # Traces, allocates, warms up.
    calls = {key: functools.partial(c.seconds, options.steps) for key, c in contenders.items()}
    times = alternate(calls, options.rounds)
    rows = summary({key: [t / options.steps for t in own] for key, own in times.items()}, batch)
    for (model, who), contender in contenders.items():
        contender.close()
        rows[model][who] |= contender.about
    return rows


def summary(times: Mapping[tuple[str, str], list[float]], batch: int) -> dict[str, dict[str, Any]]:
    """Returns clips per second by contender, PyTorch's seconds over ours, and speeds relative to the slowest I3D."""
    rows: dict[str, dict[str, Any]] = {}
    for (model, who), own in times.items():
        row = rows.setdefault(model, {"batch": batch})
        row[who] = {
            "clips_per_second": batch / statistics.median(own),
            "rounds_seconds": [round(t, 4) for t in own],
            "over_i3d_3x1x1": ratio(times[SLOWEST, who], own),
        }
    for model, row in rows.items():
        over = ratio(times[model, "torch"], times[model, "ours"]) if "torch" in row else None
        row["torch_seconds_over_ours"], row["bar"] = over, BARS[model]
        row["meets_bar"] = None if over is None else over >= BARS[model]
        paper = PAPER[model]["clips_per_second"]
        row["paper"] = {
            "clips_per_second": paper,
            "over_i3d_3x1x1": round(paper / PAPER[SLOWEST]["clips_per_second"], 1),
        }
    return rows


def say(mode: str, precision: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints the rows of a mode."""
    for model, row in rows.items():
        own, over = row["ours"], row["torch_seconds_over_ours"]
        beside = "no PyTorch" if over is None else f"{over:.3f} x PyTorch (bar {row['bar']})"
        print(
            f"{precision} {mode} {model:10} {own['clips_per_second']:.3f} clips/s, {beside}, "
            f"{own['over_i3d_3x1x1']:.2f} x i3d_3x1x1 (paper {row['paper']['over_i3d_3x1x1']})",
            flush=True,
        )


def main() -> None:
    parser = arguments.parser(__doc__, "video.json", rounds=5)
    arguments.add_precisions(parser, "fp32")
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--infer-batch", type=int, default=4)
    parser.add_argument("--train-batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1, help="steps per contender and round")
    arguments.add_torch_python(parser)
    arguments.add_quick(parser)
    options = parser.parse_args()
    if options.quick:
        options.pixels, options.infer_batch, options.train_batch, options.rounds = 64, 1, 1, 1
    interpreters = peers(options.torch_python)
    names = ("pixels", "infer_batch", "train_batch", "steps", "rounds")
    result: dict[str, Any] = {
        **head(),
        "settings": {name: getattr(options, name) for name in names},
        "missing_peers": left_out(interpreters, ("torch",)),
        "networks": {},
    }

    def keep() -> None:
        if not options.quick:
            write(result, options.output)

    for precision in options.precisions:
        result["networks"][precision] = {}
        for mode in MODES:
            rows = networks(mode, precision, options, interpreters.get("torch"))
            result["networks"][precision][mode] = rows
            say(mode, precision, rows)
            keep()


if __name__ == "__main__":
    main()
