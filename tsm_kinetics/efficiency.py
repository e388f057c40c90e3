"""Computes the three efficiencies of "Training Kinetics in 15 Minutes" (Table 1, Figure 3) for this project's networks.

    python -m tsm_kinetics.efficiency                                  # counts: Table 1, compute/IO, scalability
    python -m tsm_kinetics.efficiency --measure                        # measures inference on this machine, too
    python -m tsm_kinetics.efficiency --measure --data_dir=DIR         # measures the loading of DIR's videos, too

The output is one line of JSON per network, or a table with --table. The program trains nothing.
"""

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from common.config import overrides as configs
from common.distributed import replicas
from common.distributed.replicas.base import Shard
from common.errors import Parser, UserError, answering
from common.layers.precision import precision
from common.train.describe import forward_macs, parameters
from tsm_kinetics import input as pipeline
from tsm_kinetics import model
from tsm_kinetics.config import MODELS, Config
from tsm_kinetics.presets import PRESETS

# Paper, Table 1: top-1, multiply-adds, parameters, clips per second on a P100 at batch 16, compute/IO.
_COLUMNS = ("accuracy", "macs", "parameters", "clips_per_second", "compute_per_input")
PAPER = {
    name: dict(zip(_COLUMNS, row, strict=True))
    for name, *row in (
        ("tsm", 0.741, 33e9, 24.3e6, 84.8, 27.4e3),
        ("i3d_3x3x3", 0.680, 40e9, 47.0e6, 63.1, 16.6e3),
        ("i3d_3x1x1", 0.733, 33e9, 29.3e6, 41.9, 6.85e3),
    )
}
GRADIENT_BYTES = 4  # Bytes per gradient element, because Horovod sends fp32.
NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclasses.dataclass(frozen=True)
class Network:
    """The network between nodes. Default: Summit's two EDR InfiniBand ports per node, 100 Gbit/s each.

    Attributes:
      latency: seconds per message between two nodes; the default of 1.5 us, typical of EDR with MPI, is an assumption.
      bandwidth: bytes per second per node in each direction.
    """

    latency: float = 1.5e-6
    bandwidth: float = 25e9


def communication_seconds(size: float, nodes: int, network: Network) -> float:
    """Predicts the seconds of a ring all-reduce of `size` bytes: the paper's equation 1, latency + size / bandwidth.

    A ring sends 2 (n - 1) messages, each with 1/n of the gradients (Patarasuk and Yuan, "Bandwidth optimal all-reduce
    algorithms for clusters of workstations", 2009): 2 (n - 1) latency + 2 (n - 1) / n x size / bandwidth.
    """
    if nodes == 1:
        return 0.0
    return 2 * (nodes - 1) * (network.latency + size / nodes / network.bandwidth)


def scalability(step_seconds: float, size: float, nodes: int, network: Network) -> float:
    """Predicts actual over ideal speed without hidden communication (paper 3c): step / (step + communication)."""
    return step_seconds / (step_seconds + communication_seconds(size, nodes, network))


def unhidden_loading(load_seconds: float, compute_seconds: float) -> float:
    """Computes how many seconds per step the computation waits for a prefetching input (paper 3b, Figure 3b)."""
    return max(0.0, load_seconds - compute_seconds)


def counted(config: Config) -> dict[str, Any]:
    """Counts the columns of Table 1 on the network's graph.

    Returns model, parameters, macs, input (frames x channels x height x width), input_elements, compute_per_input (the
    paper's Compute/IO: multiply-adds per input element), and the paper's own figures under "paper".
    """
    network = _built(config)
    macs, elements = forward_macs(network), config.frames * 3 * config.image_size**2
    return {
        "model": config.model,
        "parameters": parameters(network),
        "macs": macs,
        "input": [config.frames, 3, config.image_size, config.image_size],
        "input_elements": elements,
        "compute_per_input": macs / elements,
        "paper": PAPER.get(config.model),
    }


def predicted(size: float, step_seconds: float, network: Network) -> list[dict[str, float]]:
    """Predicts communication time and scalability for each number of nodes (figures 3c and 6)."""
    return [
        {
            "nodes": nodes,
            "communication_seconds": communication_seconds(size, nodes, network),
            "scalability": scalability(step_seconds, size, nodes, network),
        }
        for nodes in NODES
    ]


def measured(config: Config, batch_size: int, steps: int, peak: float) -> dict[str, float]:
    """Measures full-batch inference on this machine: clips per second, and achieved over measured peak."""
    network = _built(config)
    shape = [batch_size, config.frames, config.image_size, config.image_size, 3]
    clips = tf.random.stateless_normal(shape, [1, 2])
    macs = forward_macs(network)
    run = tf.function(lambda x: network(x, training=False), jit_compile=_on_gpu())
    seconds = sorted(_seconds(lambda: run(clips).numpy(), steps))[steps // 2]
    rate = batch_size / seconds
    return {
        "batch_size": batch_size,
        "clips_per_second": rate,
        "flops_per_second": 2 * macs * rate,
        "utilization": 2 * macs * rate / peak,
    }


def peak_flops() -> float:
    """Measures this machine's peak, for the utilization: flops per second of a large float32 matrix product."""
    size = 8192 if _on_gpu() else 2048  # On a CPU, size 1024 is a fifth slower.
    a = tf.random.stateless_normal([size, size], [3, 4])
    product = tf.function(lambda a: tf.reduce_sum(a @ a))
    return 2 * size**3 / min(_seconds(lambda: product(a).numpy(), 5))


def loading_seconds(config: Config, data_dir: str, batches: int) -> float:
    """Measures the input's seconds per training batch, after the first batch and without training."""
    index = pipeline.load(config, data_dir, training=True)
    share = config.global_batch_size
    stream = iter(pipeline.train_input(config, index, Shard(), share, 0))
    next(stream)
    began = time.perf_counter()
    for _ in range(batches):
        next(stream)
    return (time.perf_counter() - began) / batches


def _built(config: Config) -> tf_keras.Model:
    return model.build(config, replicas.make(config), precision(config.precision))


def _on_gpu() -> bool:
    return bool(tf.config.list_physical_devices("GPU"))


def _seconds(run: Callable[[], Any], steps: int) -> list[float]:
    run()
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return times


def report(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Makes each network's record, as described in the module docstring.

    Raises UserError if a flag is out of range, or the data in --data_dir does not fit the preset.
    """
    _check(arguments)
    base = configs.preset(PRESETS, arguments.system) if arguments.system else Config()
    peak = peak_flops() if arguments.measure else math.nan
    network = Network(arguments.latency, arguments.bandwidth)
    rows = []
    for name in arguments.models.split(","):
        if name not in MODELS:
            raise UserError(f"--models={name}: unknown; known: {', '.join(MODELS)}")
        config = dataclasses.replace(
            base,
            model=name,
            replicas="single",
            num_replicas=1,
            precision="fp32",
            accumulation_steps=1,
            global_batch_size=arguments.batch_size,
        )
        if arguments.image_size:
            config = dataclasses.replace(config, image_size=arguments.image_size)
        row = counted(config)
        rate = row["paper"]["clips_per_second"] if row["paper"] else None
        if arguments.measure:
            row["measured"] = {
                "peak_flops_per_second": peak,
                **measured(config, arguments.batch_size, arguments.steps, peak),
            }
            rate = row["measured"]["clips_per_second"]
        # Training costs about three times inference: forward pass, gradients of inputs, gradients of weights.
        step = 3 * arguments.clips_per_device / rate if rate else None
        if arguments.data_dir and rate:
            load = loading_seconds(config, arguments.data_dir, arguments.steps)
            compute = 3 * arguments.batch_size / rate
            row["loading"] = {"seconds": load, "not_hidden_seconds": unhidden_loading(load, compute)}
        row["gradient_bytes"] = row["parameters"] * GRADIENT_BYTES
        row["step_seconds"] = step
        row["scaling"] = predicted(row["gradient_bytes"], step, network) if step else []
        rows.append(row)
    return rows


def _check(arguments: argparse.Namespace) -> None:
    for name in ("batch_size", "clips_per_device", "steps"):
        if getattr(arguments, name) < 1:
            raise UserError(f"--{name}={getattr(arguments, name)}: must be at least 1")
    for name in ("image_size", "latency"):
        if not 0 <= getattr(arguments, name) < math.inf:
            raise UserError(f"--{name}={getattr(arguments, name)}: must be at least 0, and finite")
    if not 0 < arguments.bandwidth < math.inf:
        raise UserError(f"--bandwidth={arguments.bandwidth}: must be bytes per second, more than 0")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Formats Table 1 with the paper's figures in brackets, then the scalability for each number of nodes."""
    lines = [
        "model       MACs G        parameters M   input                 compute/IO k   clips/s         utilization"
    ]
    for row in rows:
        paper = row["paper"]
        measurement = row.get("measured", {})

        def beside(value: float, key: str, scale: float, digits: int = 1, paper: dict | None = paper) -> str:
            own = f"{value / scale:.{digits}f}"
            return f"{own} ({paper[key] / scale:.{digits}f})" if paper else own

        speed = (
            beside(measurement["clips_per_second"], "clips_per_second", 1) if measurement else "not measured"
        )
        lines.append(
            f"{row['model']:<11} {beside(row['macs'], 'macs', 1e9):<13} "
            f"{beside(row['parameters'], 'parameters', 1e6):<14} {' x '.join(map(str, row['input'])):<21} "
            f"{beside(row['compute_per_input'], 'compute_per_input', 1e3, 2):<14} {speed:<15} "
            + (f"{measurement['utilization']:.2f}" if measurement else "")
        )
    lines += ["", "scalability at nodes " + " ".join(f"{nodes:>6}" for nodes in NODES)]
    for row in rows:
        if row["scaling"]:
            lines.append(
                f"{row['model']:<20} " + " ".join(f"{one['scalability']:6.3f}" for one in row["scaling"])
            )
    for row in rows:
        if "loading" in row:
            lines.append(
                f"{row['model']}: a batch loads in {row['loading']['seconds']:.3f} s, of which the computation does "
                f"not hide {row['loading']['not_hidden_seconds']:.3f} s"
            )
    return "\n".join(lines)


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
        "--clips_per_device", type=int, default=8, help="of a training step, for the scalability"
    )
    parser.add_argument("--steps", type=int, default=5, help="timed batches")
    parser.add_argument("--image_size", type=int, default=0, help="pixels; 0: the preset's")
    parser.add_argument("--latency", type=float, default=Network.latency, help="seconds per message")
    parser.add_argument(
        "--bandwidth", type=float, default=Network.bandwidth, help="bytes per second of a node"
    )
    parser.add_argument("--table", action="store_true", help="a table in place of JSON")
    arguments = parser.parse_args(argv)
    rows = report(arguments)
    print(table(rows) if arguments.table else "\n".join(json.dumps(row) for row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
