"""Our step and a JAX peer's of the same network on one TPU core, by its compiler: estimated time, bytes, memory.

    python -m lab.bench.compiled_step [--cases resnet transformer ssd] [--target tpu-v3] [--jax-python PYTHON]
        [--keep DIR] [--add] [--quick]

Both steps are StableHLO and go through systems/compile. This needs no device, and nothing runs. The batch is that of
one core in the 2,048-core preset. The step is for one replica: no exchange, batch norm over its own images, the whole
update. The peers are flax's ResNet-50 with optax's SGD and with its LARS, and a Transformer of flax's attention with
Adam. Each peer is compared with ours under the same optimizer, with the same kind of random numbers. For SSD we found
no maintained JAX network, so ours has no peer. The compiler counts no cycles for calls of the device's random
generator.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from lab.bench.harness import ROOT, scripts
from lab.bench.harness.scripts import head, write
from systems.compile import run
from systems.compile.targets import target

SYSTEM = "tpu-v3-2048"
_ALONE = ("--config.replicas=single", "--config.num_replicas=1", "--config.partitions=1")


class Case(NamedTuple):
    """A network.

    Attributes:
      title: name and batch.
      batch: examples per core.
      flags: flags of the export.
      variants: {name: additional flags}, our rows.
      peers: {name: (our variant to compare with, contender, keywords)}.
    """

    title: str
    batch: int
    flags: tuple[str, ...]
    variants: dict[str, tuple[str, ...]]
    peers: dict[str, tuple[str, str, dict[str, Any]]]


def _transformer(layers: int) -> Case:
    sizes = {"batch": 1, "length": 256, "sizes": [layers, 1024, 4096, 16, 33708, 0.1]}
    return Case(
        f"Transformer, {layers} layers, 1 packed sequence of 256",
        1,
        ("--config.optimizer.name=adam", f"--config.layers={layers}"),
        {"counter": (), "hardware": ("--config.dropout_generator=hardware",)},
        {
            "flax, threefry": ("counter", "jax_transformer", sizes),
            "flax, rbg": ("hardware", "jax_transformer", sizes | {"generator": "rbg"}),
        },
    )


CASES = {
    "resnet": Case(
        "ResNet-50, 16 images",
        16,
        ("--config.batch_norm_span=16",),
        {"LARS": (), "SGD": ("--config.optimizer.name=sgd",)},
        {
            "flax, LARS": ("LARS", "jax_resnet", {"batch": 16, "optimizer": "lars"}),
            "flax, SGD": ("SGD", "jax_resnet", {"batch": 16}),
        },
    ),
    "transformer": _transformer(6),
    "ssd": Case("SSD-300, 4 images", 4, ("--config.batch_norm_span=4",), {"ours": ()}, {}),
}


def figures(report: dict[str, Any]) -> dict[str, Any]:
    """Extracts the figures to keep from a compiler's report.

    Raises:
      SystemExit: the program did not compile.
    """
    if "error" in report:
        sys.exit(f"compiled_step: {report['error']}")
    return {
        "estimated_ms": report["estimated_ms"],
        "optimal_ms": report["optimal_ms"],
        "bytes_accessed": report["cost"].get("bytes accessed"),
        "needed_bytes": report["needed_bytes"],
        "cycles": report["cycles"]["total"],
        "cycles_by_kind": report["cycles"]["by_kind"],
        "copies": report["copies"],
        "generator_calls": report["cycles"]["without"].get("rng-bit-generator", 0),
        "compile_seconds": report["compile_seconds"],
        "digest": report["digest"],
    }


def compiled(folder: Path, kind: str, keep: Path | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the figures and the versions for the training step exported into `folder`."""
    manifest = json.loads((folder / "manifest.json").read_text())
    (program,) = [p for p in manifest["programs"] if p["name"].startswith("train")]
    report = run.compiled(folder, manifest, program, target(kind, 1), _say, results=folder, keep=keep)
    return figures(report), report.get("versions", {}) | manifest.get("versions", {})


def measured(name: str, case: Case, kind: str, python: str, keep: Path | None) -> dict[str, Any]:
    """Returns our rows, the peers' rows, and the ratio of each peer's estimate to ours."""
    found: dict[str, Any] = {"title": case.title, "ours": {}, "peers": {}}
    sizes = tuple(f"--config.{field}={case.batch}" for field in ("global_batch_size", "eval_batch_size"))
    with tempfile.TemporaryDirectory() as scratch:
        for variant, flags in case.variants.items():
            folder = Path(scratch) / variant
            run.export(name, SYSTEM, folder, [*_ALONE, *sizes, *case.flags, *flags], _say, "train")
            found["ours"][variant], _ = compiled(folder, kind, keep and keep / f"{name}-{variant}")
        for peer, (variant, module, keywords) in case.peers.items():
            folder = Path(scratch) / peer.replace(", ", "-")
            command = [python, "-m", "lab.bench.contenders.jax_export", module, folder, json.dumps(keywords)]
            if subprocess.run(list(map(str, command)), cwd=ROOT).returncode:
                sys.exit(f"compiled_step: {module} was not exported; --jax-python needs flax (make aot)")
            row, versions = compiled(folder, kind, keep and keep / folder.name)
            ours = found["ours"][variant]["estimated_ms"]
            found["peers"][peer] = row | {
                "beside": variant,
                "versions": versions,
                "over_ours": row["estimated_ms"] / ours,
            }
    return found


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = scripts.parser(__doc__, "compiled_step.json")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--target", default="tpu-v3", help="kind of device; default: tpu-v3")
    parser.add_argument(
        "--jax-python", help="an interpreter with jax and flax; default: this one, after `make aot`"
    )
    parser.add_argument("--keep", type=Path, help="put the optimised programs' text here")
    parser.add_argument("--add", action="store_true", help="keep what the output has of other cases")
    scripts.add_quick(parser)
    options = parser.parse_args()
    python = options.jax_python or run.compiler_python("tpu")
    cases = (
        {"transformer": _transformer(1)} if options.quick else {name: CASES[name] for name in options.cases}
    )
    result = {**head(), "target": options.target, "compiler": run.versions("tpu"), "cases": {}}
    if options.add and options.output.exists():
        result["cases"] = json.loads(options.output.read_text())["cases"]
    for name, case in cases.items():
        result["cases"][name] = found = measured(name, case, options.target, python, options.keep)
        for side in ("ours", "peers"):
            for row, values in found[side].items():
                print(f"{case.title}: {row}: {values['estimated_ms']:.1f} ms by cycles", flush=True)
        if not options.quick:
            write(result, options.output)


if __name__ == "__main__":
    main()
