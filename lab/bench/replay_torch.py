"""The network of an export in PyTorch, eager and with torch.compile, at the same batch and precision.

    python -m lab.bench.replay_torch DIR [--steps N] [--modes eager compiled]

Needs torch, but neither jax nor TensorFlow. `python -m lab.bench.replay DIR --torch PYTHON` calls it, so that one run
measures both. Prints a line of JSON per mode. The update is torch's fused Adam, or SGD with momentum; SGD also replaces
LARS, which torch lacks.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

try:
    import torch
except ImportError:
    sys.exit("error: no torch here; pip install torch" if sys.argv[1:] else None)
from lab.bench.contenders.torch_networks import NETWORKS
from lab.bench.contenders.torch_step import DTYPES, stepper


def measure(
    step: Callable[[], torch.Tensor], options: argparse.Namespace, device: str
) -> tuple[list[float], float]:
    """Returns the seconds per step in every round, and the last loss."""

    def wait(loss: torch.Tensor) -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return float(loss)

    for _ in range(max(options.warmup, 1)):
        loss = step()
    wait(loss)
    seconds = []
    for _ in range(options.rounds):
        began = time.perf_counter()
        for _ in range(options.steps):
            loss = step()
        last = wait(loss)
        seconds.append((time.perf_counter() - began) / options.steps)
    return seconds, last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="what python -m BENCHMARK --export=DIR wrote")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--modes", nargs="+", default=["eager", "compiled"], choices=["eager", "compiled"])
    options = parser.parse_args()
    if options.folder is None:  # `make bench` runs every script.
        print("nothing to replay: name a folder that python -m BENCHMARK --export=DIR wrote")
        return
    path = options.folder / "manifest.json"
    if not path.exists():
        sys.exit(f"error: {path}: no such file; give the folder that python -m BENCHMARK --export=DIR wrote")
    manifest = json.loads(path.read_text())
    benchmark, device = manifest["benchmark"], "cuda" if torch.cuda.is_available() else "cpu"
    if benchmark not in NETWORKS or manifest["precision"] not in DTYPES:
        sys.exit(
            f"error: {benchmark} in {manifest['precision']}: here are {', '.join(NETWORKS)} in {', '.join(DTYPES)}"
        )
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")  # TF32, XLA's default.
    for mode in options.modes:
        torch.manual_seed(0)
        try:
            network = NETWORKS[benchmark](manifest, device)
        except ValueError as error:
            sys.exit(f"error: {error}")
        seconds, loss = measure(stepper(network, manifest, device, mode == "compiled"), options, device)
        median = statistics.median(seconds)
        row = {
            "mode": mode,
            "ms": 1000 * median,
            "ms_of_rounds": [round(1000 * s, 3) for s in seconds],
            "examples_per_second": manifest["batch"]["train"] / median,
            "loss": loss,
            "parameters": sum(p.numel() for p in network[0].parameters()),
            "parameters_of_the_export": manifest["parameters"],
            "device": torch.cuda.get_device_name() if device == "cuda" else device,
            "torch": torch.__version__,
            "memory_gb": torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else None,
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
