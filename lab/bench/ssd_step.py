"""SSD-300's training step against the same network under Keras `fit` and in PyTorch.

Trains the benchmark's full-size network on one batch in memory, one replica, all cores, SGD with momentum and no weight
decay. Both peers get finished targets, ours computes them; contenders/tensorflow_ssd.py and `ssd` in
contenders/torch_networks.py have details. Rounds alternate. The result is the median over rounds of (their seconds /
our seconds) in the same round.

    python -m lab.bench.ssd_step [--batch N] [--precisions fp32 bf16] [--rounds N] [--steps N] [--torch-python PYTHON]
        [--quick]
"""

from __future__ import annotations

from common.config.schema import Optimizer
from lab.bench.harness import arguments
from lab.bench.harness.interpreters import peers
from lab.bench.harness.results import write
from lab.bench.harness.steps import about, commands, manifest, measure, on_one_replica
from ssd.config import Config
from ssd.presets import PRESETS

NAMES = ("ours", "keras_fit")
BARS = {"keras_fit": 1.05, "torch": 1.0}  # Minimum ratios of their seconds to ours.


def config_of(precision: str, batch: int) -> Config:
    """Returns the published network on one replica."""
    return on_one_replica(
        PRESETS["v100-8"],
        batch,
        precision,
        loss_scale=1.0,
        batch_norm_span=0,
        optimizer=Optimizer(name="sgd", base_learning_rate=1e-3, momentum=0.9),
    )


def main() -> None:
    parser = arguments.parser(__doc__, "ssd_step.json", rounds=7)
    parser.add_argument("--batch", type=int, default=8)
    arguments.add_precisions(parser, "fp32")
    parser.add_argument("--steps", type=int, default=1, help="training steps per contender and round")
    arguments.add_torch_python(parser)
    arguments.add_quick(parser)
    options = parser.parse_args()
    if options.quick:
        options.batch, options.rounds = 1, 1
    python = peers(options.torch_python).get("torch")
    settings = {"batch": options.batch, "rounds": options.rounds}
    result = {**about(python, **settings), "step": {}}
    for precision in options.precisions:
        config = config_of(precision, options.batch)
        told = ("train", manifest(config, benchmark="ssd"))
        called = commands("tensorflow_ssd", NAMES, "torch_images", python, *told)
        rows = measure(called, options.steps, options.rounds)
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
