"""Compiles a sharded training step with each optimizer for TPUs and a GPU, none of which is there.

The steps are those of the small presets, for 8 replicas of the backend `pjrt`, with the update sharded. It needs the
compilers that `make aot` installs, and no device.

    python -m lab.bench.optimizers_compiled [--networks mnist resnet] [--targets tpu-v3 tpu-v4 h100]
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.config import benchmarks
from common.config.validation import LATER_OPTIMIZERS
from lab.bench import optimizers
from lab.bench.harness import arguments
from lab.bench.harness.results import head, write
from systems.compile import run, targets

NAMES = ("nesterov", *LATER_OPTIMIZERS)
TARGETS = ("tpu-v3", "tpu-v4", "h100")
REPLICAS = 8


def flags(network: str, name: str) -> list[str]:
    """Returns the flags of an export with an optimizer's sharded update."""
    rule = optimizers.rule(
        name, benchmarks.module(network, "presets").PRESETS["cpu-tiny"].optimizer.skip_kinds
    )
    values = {f"optimizer.{field}": value for field, value in dataclasses.asdict(rule).items()}
    values |= {
        "division": "open",
        "replicas": "pjrt",
        "num_replicas": REPLICAS,
        "communication.shard_weight_update": True,
        "schedule.kind": "constant",
    }
    shown = {k: ",".join(v) if isinstance(v, tuple) else v for k, v in values.items()}
    return [f"--config.{field}={value}" for field, value in shown.items()]


def compiled(network: str, name: str, kinds: Sequence[str], results: Path) -> dict[str, Any]:
    """Returns {target: {"seconds", "needed_bytes", "fits", "error"}} of the training step; what a report lacks is None.

    Args:
      network: a benchmark with a preset "cpu-tiny".
      name: one of NAMES.
      kinds: device kinds of systems/compile/targets.py.
      results: folder that keeps the whole reports; a program that is there is not compiled again.

    Raises:
      UserError: the export fails, or a compiler is not installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        manifest = run.export(network, "cpu-tiny", Path(folder), flags(network, name), _quiet, "train")
        (program,) = manifest["programs"]
        reports = {
            kind: run.compiled(
                Path(folder), manifest, program, targets.target(kind, REPLICAS), _quiet, results
            )
            for kind in kinds
        }
    keys = {"compile_seconds": "seconds", "needed_bytes": "needed_bytes", "fits": "fits", "error": "error"}
    return {kind: {new: found.get(old) for old, new in keys.items()} for kind, found in reports.items()}


def _quiet(line: str) -> None:
    pass


def main() -> None:
    parser = arguments.parser(__doc__, "optimizers_compiled.json")
    parser.add_argument("--networks", nargs="+", default=["mnist", "resnet"], choices=["mnist", "resnet"])
    parser.add_argument("--targets", nargs="+", default=TARGETS, choices=targets.NAMES)
    options = parser.parse_args()
    result: dict[str, Any] = {**head("jax", "jaxlib"), "compilers": {}, "networks": {}}
    for platform in sorted({targets.target(kind, 1).platform for kind in options.targets}):
        result["compilers"] |= run.versions(platform)
    with tempfile.TemporaryDirectory() as results:
        for network in options.networks:
            rows = result["networks"][network] = {}
            for name in NAMES:
                rows[name] = compiled(network, name, options.targets, Path(results))
                print(network, name, rows[name], flush=True)
    write(result, options.output)


if __name__ == "__main__":
    main()
