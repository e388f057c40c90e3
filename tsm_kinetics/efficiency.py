"""Prints the three efficiencies of "Training Kinetics in 15 Minutes" (Table 1, Figure 3) for this project's networks.

    python -m tsm_kinetics.efficiency                                  # counts: Table 1, compute/IO, scalability
    python -m tsm_kinetics.efficiency --measure                        # measures inference on this machine, too
    python -m tsm_kinetics.efficiency --measure --data_dir=DIR         # measures the loading of DIR's videos, too

The paper's figures are in brackets. The program trains nothing.
"""

import argparse
import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from common.config import overrides as configs
from common.distributed import replicas
from common.distributed.replicas.base import Shard
from common.errors import Parser, UserError, answering
from common.files import markdown_table
from common.layers.precision import precision
from common.train.describe import parameters
from common.train.multiply_adds import forward_macs
from tsm_kinetics import input as pipeline
from tsm_kinetics import model
from tsm_kinetics.config import MODELS, Config
from tsm_kinetics.presets import PRESETS

# Paper, Table 1: multiply-adds, parameters, compute/IO, clips per second on a P100 at batch 16.
PAPER = {
    "tsm": (33e9, 24.3e6, 27.4e3, 84.8),
    "i3d_3x3x3": (40e9, 47.0e6, 16.6e3, 63.1),
    "i3d_3x1x1": (33e9, 29.3e6, 6.85e3, 41.9),
}
GRADIENT_BYTES = 4  # Bytes per gradient element, because Horovod sends fp32.
NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Summit's network between nodes: seconds per message, typical of EDR InfiniBand with MPI (an assumption), and bytes per
# second per node in each direction (two ports of 100 Gbit/s).
LATENCY, BANDWIDTH = 1.5e-6, 25e9


def communication_seconds(size: float, nodes: int, latency: float, bandwidth: float) -> float:
    """Predicts the seconds of a ring all-reduce of `size` bytes: the paper's equation 1, latency + size / bandwidth.

    A ring sends 2 (n - 1) messages, each with 1/n of the gradients (Patarasuk and Yuan, "Bandwidth optimal all-reduce
    algorithms for clusters of workstations", 2009): 2 (n - 1) latency + 2 (n - 1) / n x size / bandwidth.
    """
    return 2 * (nodes - 1) * (latency + size / nodes / bandwidth)


def scalability(step_seconds: float, size: float, nodes: int, latency: float, bandwidth: float) -> float:
    """Predicts actual over ideal speed without hidden communication (paper 3c): step / (step + communication)."""
    return step_seconds / (step_seconds + communication_seconds(size, nodes, latency, bandwidth))


def measured(network: tf.Module, clips: tf.Tensor, steps: int) -> float:
    """Measures the clips per second of inference on this machine, in full batches."""
    run = tf.function(lambda: network(clips, training=False), jit_compile=_on_gpu(), autograph=False)
    return len(clips) / sorted(_seconds(lambda: run().numpy(), steps))[steps // 2]


def peak_flops() -> float:
    """Measures this machine's peak, for the utilization: flops per second of a large float32 matrix product."""
    size = 8192 if _on_gpu() else 2048  # On a CPU, size 1024 is a fifth slower.
    a = tf.random.stateless_normal([size, size], [3, 4])
    product = tf.function(lambda: tf.reduce_sum(a @ a))
    return 2 * size**3 / min(_seconds(lambda: product().numpy(), 5))


def loading_seconds(config: Config, data_dir: str, batches: int) -> float:
    """Measures the input's seconds per training batch, after the first batch and without training."""
    index = pipeline.load(config, data_dir, training=True)
    stream = iter(pipeline.train_input(config, index, Shard(), config.global_batch_size, 0))
    return sum(_seconds(lambda: next(stream), batches)) / batches


def _on_gpu() -> bool:
    return bool(tf.config.list_physical_devices("GPU"))


def _seconds(run: Callable[[], Any], steps: int) -> list[float]:
    run()
    times = [time.perf_counter()]
    for _ in range(steps):
        run()
        times.append(time.perf_counter())
    return [end - began for began, end in itertools.pairwise(times)]


def report(arguments: argparse.Namespace) -> str:
    """Returns Table 1, the scalability for each number of nodes and, of --data_dir's videos, what is not hidden.

    Raises UserError if the data in --data_dir does not fit the preset.
    """
    table, scaling, loading = [], [], []
    base = configs.preset(PRESETS, arguments.system) if arguments.system else Config()
    peak = peak_flops() if arguments.measure else 0.0
    for name in arguments.models.split(","):
        if name not in MODELS:
            raise UserError(f"--models={name}: unknown; known: {', '.join(MODELS)}")
        alone = {"replicas": "single", "num_replicas": 1, "precision": "fp32", "accumulation_steps": 1}
        config = dataclasses.replace(base, model=name, global_batch_size=arguments.batch_size, **alone)
        config = dataclasses.replace(config, image_size=arguments.image_size or config.image_size)
        network = model.build(config, replicas.make(config), precision(config.precision))
        shape = config.frames, config.image_size, config.image_size, 3
        macs, count, paper = forward_macs(network), parameters(network), PAPER.get(name, (0.0,) * 4)
        values = [macs, count, macs / (config.frames * 3 * config.image_size**2)]
        rate = paper[3]
        if arguments.measure:
            clips = tf.random.stateless_normal([arguments.batch_size, *shape], [1, 2])
            rate = measured(network, clips, arguments.steps)
            values.append(rate)
        cells = [
            f"{value / unit:.{digits}f}" + (f" ({figure / unit:.{digits}f})" if figure else "")
            for value, figure, unit, digits in zip(values, paper, (1e9, 1e6, 1e3, 1), (1, 1, 2, 1))
        ]
        share = f"{2 * macs * rate / peak:.2f}" if arguments.measure else ""
        table.append((name, " x ".join(map(str, shape)), *cells, *["not measured"] * (4 - len(cells)), share))
        if not rate:
            continue
        # Training costs about three times inference: forward pass, gradients of inputs, gradients of weights.
        step, size = 3 * arguments.clips_per_device / rate, count * GRADIENT_BYTES
        link = arguments.latency, arguments.bandwidth
        scaling.append((name, *(f"{scalability(step, size, nodes, *link):.3f}" for nodes in NODES)))
        if arguments.data_dir:
            seconds = loading_seconds(config, arguments.data_dir, arguments.steps)
            # The computation hides a prefetching input up to its own time (paper 3b, Figure 3b).
            exposed = max(0.0, seconds - 3 * arguments.batch_size / rate)
            hides = f"of which the computation does not hide {exposed:.3f} s"
            loading.append(f"{name}: a batch loads in {seconds:.3f} s, {hides}")
    head = ("model", "input", "MACs G", "parameters M", "compute/IO k", "clips/s", "utilization")
    tables = [markdown_table(head, table), markdown_table(("scalability at nodes", *NODES), scaling)]
    return "\n\n".join(tables[: 1 + bool(scaling)] + loading)


@answering()
def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m tsm_kinetics.efficiency`, see --help; returns the exit code."""
    parser = Parser(
        prog="python -m tsm_kinetics.efficiency",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", default="i3d_3x3x3,i3d_3x1x1,tsm", help="separated by commas")
    parser.add_argument("--system", default="", help="preset whose sizes are taken; default: full size")
    parser.add_argument("--measure", action="store_true", help="run inference on this machine")
    parser.add_argument("--data_dir", help="measure the loading of these videos")
    parser.add_argument("--batch_size", type=int, default=16, help="clips; the paper's is 16")
    parser.add_argument(
        "--clips_per_device", type=int, default=8, help="clips in a training step, for the scalability"
    )
    parser.add_argument("--steps", type=int, default=5, help="timed batches")
    parser.add_argument("--image_size", type=int, default=0, help="pixels; 0: the preset's")
    parser.add_argument("--latency", type=float, default=LATENCY, help="seconds per message")
    parser.add_argument("--bandwidth", type=float, default=BANDWIDTH, help="bytes per second of a node")
    arguments = parser.parse_args(argv)
    for name, least in (("batch_size", 1), ("clips_per_device", 1), ("steps", 1), ("image_size", 0)):
        if getattr(arguments, name) < least:
            raise UserError(f"--{name}={getattr(arguments, name)}: must be at least {least}")
    if not (0 <= arguments.latency < float("inf") and 0 < arguments.bandwidth < float("inf")):
        raise UserError(
            f"--latency={arguments.latency}, --bandwidth={arguments.bandwidth}: must be at least 0, above 0, and finite"
        )
    print(report(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
