"""Our step and a JAX peer's of the same network for one TPU core or one GPU, according to the device's compiler.

    python -m lab.bench.compiled_step [--target tpu-v3 | h100 | h200 | b200] [--cases resnet ...]

Both steps are StableHLO and go through systems/compile. This needs no device, and nothing runs. A step is for one
replica: no exchange, batch norm over its own images, the whole update. The peers are flax's ResNet-50 with optax's SGD
or LARS, and a Transformer of flax's attention with Adam. Each peer is compared with ours under the same optimizer, with
the same kind of random numbers. For the other networks we found no maintained JAX network.

- tpu-v3: estimated time, bytes, memory, with the batch of one core in the 2,048-core preset. The compiler counts no
  cycles for calls of the device's random generator.
- h100: kernels, bytes, copies and loops of the steps of docs/replay.md, in bf16. Without a device XLA cannot choose
  kernels of cuBLAS and cuDNN by timing them, so a real card's program has other kernels for the products.
- h200, b200: the same of Llama 3.1 8B, for 16 sequences one after another.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from lab.bench.harness import ROOT, scripts
from lab.bench.harness.scripts import head, write
from systems.compile import hlo, launches, run
from systems.compile.targets import target

_PLATFORMS = {"tpu-v3": "tpu", "h100": "cuda", "h200": "cuda", "b200": "cuda"}
_ALONE = ("--config.replicas=single", "--config.num_replicas=1", "--config.partitions=1")
_WITHOUT = ("--noexport_values", "--export_reference=none", "--export_programs=train")
_BF16 = ("--config.precision=bf16", "--config.hardware=h100-1")


class Case(NamedTuple):
    """A network.

    Attributes:
      title: name and batch.
      system: the preset.
      batch: examples per device.
      flags: flags of the export.
      variants: {name: additional flags}, our rows.
      peers: {name: (our variant to compare with, contender, keywords)}.
    """

    title: str
    system: str
    batch: int
    flags: tuple[str, ...]
    variants: dict[str, tuple[str, ...]] = {"now": ()}
    peers: dict[str, tuple[str, str, dict[str, Any]]] = {}


def _tpu(title: str, batch: int, flags: tuple[str, ...], *more: Any) -> Case:
    return Case(title, "tpu-v3-2048", batch, flags, *more)


def _gpu(title: str, system: str, batch: int, *flags: str, **peer: Any) -> Case:
    variants = {"now": (), **peer.pop("variants", {})}
    peers = {"flax": ("now", *peer.popitem())} if peer else {}
    return Case(title, system, batch, (*_BF16, *flags), variants, peers)


def _span(images: int) -> str:
    return f"--config.batch_norm_span={images}"


def _llama(system: str) -> dict[str, Case]:
    return {"llama31_8b": Case("Llama 3.1 8B", system, 16, ("--config.division=open",), {"16 sequences": ()})}


_SIZES = [6, 1024, 4096, 16, 33708, 0.1]
_TOKENS = {"batch": 1, "length": 256, "sizes": _SIZES}
CASES = {
    "tpu-v3": {
        "resnet": _tpu(
            *("ResNet-50, 16 images", 16, (_span(16),)),
            {"LARS": (), "SGD": ("--config.optimizer.name=sgd",)},
            {
                "flax, LARS": ("LARS", "jax_resnet", {"batch": 16, "optimizer": "lars"}),
                "flax, SGD": ("SGD", "jax_resnet", {"batch": 16}),
            },
        ),
        "transformer": _tpu(
            *("Transformer, 6 layers, 1 packed sequence of 256", 1, ("--config.optimizer.name=adam",)),
            {"counter": (), "hardware": ("--config.dropout_generator=hardware",)},
            {
                "flax, threefry": ("counter", "jax_transformer", _TOKENS),
                "flax, rbg": ("hardware", "jax_transformer", _TOKENS | {"generator": "rbg"}),
            },
        ),
        "ssd": _tpu("SSD-300, 4 images", 4, (_span(4),), {"ours": ()}),
    },
    "h100": {
        "gnmt": _gpu("GNMT, 256 x 48", "tpu-v3-32", 256, "--config.bucket_limits=48"),
        "maskrcnn": _gpu("Mask R-CNN, 4 images", "h100-8", 4),
        "transformer": _gpu(
            *("Transformer, 32 x 256", "tpu-v3-32", 32),
            variants={"hardware": ("--config.dropout_generator=hardware",)},
            jax_transformer=_TOKENS | {"batch": 32, "generator": "rbg"},
        ),
        "resnet": _gpu("ResNet-50, 256 images", "tpu-v3-32", 256, _span(256)),
        "ssd": _gpu("SSD-300, 128 images", "tpu-v3-32", 128, _span(128)),
        "tsm_kinetics": _gpu("TSM, 16 clips of 8", "summit-1", 16),
    },
    "h200": _llama("h200-1"),
    "b200": _llama("b200-1"),
}


def figures(report: dict[str, Any], text: str = "") -> dict[str, Any]:
    """Returns the figures to keep of a compiler's report; `text` is the optimized program's, for a GPU.

    Raises SystemExit if the program did not compile.
    """
    if "error" in report:
        sys.exit(f"compiled_step: {report['error']}")
    about = {key: report[key] for key in ("digest", "needed_bytes")}
    if text:
        program = hlo.Program(text)
        more = {"memory": report.get("memory"), "matrix_flops": hlo.matrix_flops(program)}
        return {**about, **more, **launches.launches(program)}
    return {
        **about,
        "estimated_ms": report["estimated_ms"],
        "optimal_ms": report["optimal_ms"],
        "bytes_accessed": report["cost"].get("bytes accessed"),
        "cycles": report["cycles"]["total"],
        "cycles_by_kind": report["cycles"]["by_kind"],
        "copies": report["copies"],
        "generator_calls": report["cycles"]["without"].get("rng-bit-generator", 0),
    }


def compiled(folder: Path, kind: str, keep: Path) -> dict[str, Any]:
    """Returns the figures of the training step (the first of several shapes) exported into `folder`."""
    manifest = json.loads((folder / "manifest.json").read_text())
    program = next(p for p in manifest["programs"] if p["name"].startswith("train"))
    report = run.compiled(folder, manifest, program, target(kind, 1), _say, results=folder, keep=keep)
    texts = keep.glob(f"{report.get('digest')}-*.txt") if _PLATFORMS[kind] == "cuda" else ()
    return figures(report, "".join(path.read_text() for path in texts))


def _exported(command: list[Any]) -> None:
    if subprocess.run(list(map(str, command)), cwd=ROOT).returncode:
        sys.exit(f"compiled_step: {command[2]} was not exported; peers need flax (make aot)")


def measured(name: str, kind: str) -> dict[str, Any]:
    """Returns our rows and the peers' rows, with the ratio of each peer's estimate to ours."""
    case, rows = CASES[kind][name], {"title": CASES[kind][name].title, "ours": {}, "peers": {}}
    sizes = [f"--config.{field}={case.batch}" for field in ("global_batch_size", "eval_batch_size")]
    with tempfile.TemporaryDirectory() as scratch:
        for variant, flags in case.variants.items():
            folder = Path(scratch) / variant
            flags = [*_ALONE, *_WITHOUT, *sizes, *case.flags, *flags, f"--export={folder}"]
            _exported([sys.executable, "-m", name, f"--system={case.system}", *flags])
            rows["ours"][variant] = compiled(folder, kind, Path(scratch) / "ours" / variant)
        for peer, (variant, module, keywords) in case.peers.items():
            folder = Path(scratch) / peer.replace(", ", "-")
            export = [
                "lab.bench.contenders.jax_export",
                module,
                folder,
                json.dumps(keywords),
                _PLATFORMS[kind],
            ]
            _exported([run.compiler_python(_PLATFORMS[kind]), "-m", *export])
            row = rows["peers"][peer] = compiled(folder, kind, Path(scratch) / "peers" / folder.name)
            if "estimated_ms" in row:
                row["over_ours"] = row["estimated_ms"] / rows["ours"][variant]["estimated_ms"]
    return rows


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = scripts.parser(__doc__, "compiled_step.json")
    parser.add_argument("--target", choices=CASES, default="tpu-v3", help="kind of device; default: tpu-v3")
    parser.add_argument("--cases", nargs="+", help="default: all of the target")
    options = parser.parse_args()
    result = json.loads(options.output.read_text()) if options.output.exists() else {"cases": {}}
    about = {**head(), "compiler": run.versions(_PLATFORMS[options.target])}
    for name in options.cases or CASES[options.target]:
        rows = measured(name, options.target)
        before = result["cases"].get(f"{options.target}/{name}", {"ours": {}, "peers": {}})
        for side in ("ours", "peers"):
            for row, values in rows[side].items():
                estimates = [f"{values['estimated_ms']:.1f} ms by cycles"] if "cycles" in values else None
                print(
                    "\n".join([f"{rows['title']}: {row}", *(estimates or launches.lines(values))]), flush=True
                )
            rows[side] = before[side] | rows[side]
        result["cases"][f"{options.target}/{name}"] = about | rows
        write(result, options.output)


if __name__ == "__main__":
    main()
