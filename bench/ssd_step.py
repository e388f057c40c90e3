"""SSD-300's training step beside the same network under Keras `fit` and in PyTorch.

The full-size network of the benchmark on a resident batch, one replica, all cores, SGD with momentum and no weight
decay; `_ssd_contenders.py` and `ssd` in `_torch_networks.py` say what differs: both peers are given targets, ours
computes them. Rounds alternate; what counts is the median over rounds of (their seconds / our seconds) in the same
round.

    python bench/ssd_step.py [--batch N] [--precisions fp32 bf16] [--rounds N] [--steps N] [--torch-python PYTHON]
        [--quick]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from _rounds import ROOT, peers, write
from _steps import about, measure

sys.path.insert(0, str(ROOT))

from common.config.digest import to_dict  # noqa: E402
from common.config.schema import Optimizer, Schedule  # noqa: E402
from ssd.config import Config  # noqa: E402
from ssd.presets import PRESETS  # noqa: E402

BARS = {"keras_fit": 1.05, "torch": 1.0}  # Their seconds over ours, at least.


def config_of(precision: str, batch: int) -> Config:
    """The published network on one replica."""
    return dataclasses.replace(
        PRESETS["v100-8"],
        division="open",
        replicas="single",
        num_replicas=1,
        precision=precision,
        loss_scale=1.0,
        batch_norm_span=0,
        global_batch_size=batch,
        eval_batch_size=batch,
        optimizer=Optimizer(name="sgd", base_learning_rate=1e-3, momentum=0.9),
        schedule=Schedule(kind="constant", warmup_epochs=0),
    )


def commands(config: Config, torch_python: str | None) -> dict[str, list[str]]:
    """Of every contender."""
    manifest = {
        "benchmark": "ssd",
        "config": to_dict(config),
        "batch": {"train": config.global_batch_size},
        "precision": config.precision,
    }
    text, folder = json.dumps(manifest), ROOT / "bench"
    found = {
        name: [sys.executable, str(folder / "_ssd_contenders.py"), name, text]
        for name in ("ours", "keras_fit")
    }
    if torch_python:
        found["torch"] = [torch_python, str(folder / "_torch_images.py"), "train", text]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--precisions", nargs="+", default=["fp32"], choices=["fp32", "bf16"])
    parser.add_argument("--steps", type=int, default=1, help="training steps per contender and round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--torch-python", help="an interpreter that has torch==2.13.0; without it PyTorch is left out"
    )
    parser.add_argument("--quick", action="store_true", help="one small round, to see that everything runs")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results" / "ssd_step.json")
    options = parser.parse_args()
    if options.quick:
        options.batch, options.rounds = 1, 1
    python = peers(options.torch_python).get("torch")
    settings = {"batch": options.batch, "rounds": options.rounds}
    result = {**about(python, **settings), "step": {}}
    for precision in options.precisions:
        config = config_of(precision, options.batch)
        rows = measure(commands(config, python), options.steps, options.rounds)
        for name, row in rows.items():
            row["images_per_second"] = options.batch / row["seconds"]
            row["bar"] = BARS.get(name)
            bar = f" (bar {row['bar']})" if row["bar"] else ""
            speed = f"{row['seconds']:.3f} s/step, {row['images_per_second']:.2f} images/s"
            print(f"{precision} {name:10} {speed}, {row['ratio_to_ours']:.3f} x ours{bar}", flush=True)
        result["step"][precision] = rows
        if not options.quick:
            write(result, options.output)


if __name__ == "__main__":
    main()
