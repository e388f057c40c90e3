"""Shows where the time of a training step goes, by oneDNN kernel, and how close kernels come to the processor's peak.

Ours and its TensorFlow peers call the same library for convolutions and matrix products. All run on one core, where
kernels run one after another, so that their times add up. oneDNN itself reports the time and size of each kernel
(ONEDNN_VERBOSE=profile_exec). `of_peak` is the speed in convolutions and products, relative to one large product in the
same precision.

    python -m lab.bench.kernels [--cases resnet-fp32 ...] [--rounds N] [--quick] [--output FILE]

With --cases the file keeps its other cases if they come from the same machine and versions.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from common.config import hardware as machine
from lab.bench.harness import arguments
from lab.bench.harness.results import head, write
from lab.bench.harness.rounds import OURS, Contender, alternate, command, ratio
from lab.bench.harness.steps import manifest

PROFILE = {"ONEDNN_VERBOSE": "profile_exec"}
# oneDNN's primitives, grouped under our names; all others are "other kernels".
KINDS = {
    "convolution": "convolutions",
    "gemm_api": "products",
    "matmul": "products",
    "batch_normalization": "batch norm",
    "layer_normalization": "layer norm",
    "reorder": "reorders",
}
ARITHMETIC = ("convolutions", "products")
PEAK = 2048  # Rows, inner size and columns of the product that gives the peak.
PEAK_STEPS = 4
CASES = ("resnet-fp32", "resnet-bf16", "ssd-fp32", "transformer-fp32", "perceptron-fp32")
TITLES = {
    "resnet-fp32": "ResNet-50, 224 pixels, batch 16, fp32",
    "resnet-bf16": "ResNet-50, 224 pixels, batch 16, bf16",
    "ssd-fp32": "SSD-300, 8 images, fp32",
    "transformer-fp32": "Transformer big, 4 x 64 tokens, fp32",
    "perceptron-fp32": "MNIST perceptron, 4 layers, batch 100, fp32",
}
_EXEC = "onednn_verbose,v1,primitive,exec,"
_SIZE = re.compile(r"(mb|g|ic|oc|od|oh|ow|kd|kh|kw)(\d+)")


def flops(kind: str, problem: str) -> float:
    """Returns a primitive's multiplications and additions, from oneDNN's text of the problem; 0 if it has none.

    The forward pass and both gradients have the same number. Padding counts. A batch size in a product may be 1 on one
    side.
    """
    if KINDS.get(kind) not in ARITHMETIC:
        return 0.0
    if ":" in problem:  # A product: [batch x] rows x inner : [batch x] inner x columns.
        left, right = ([int(n) for n in side.split("x")] for side in problem.split("_")[0].split(":")[:2])
        batch = math.prod(max(pair) for pair in zip(left[:-2], right[:-2]))
        return 2.0 * batch * left[-2] * left[-1] * right[-1]
    total, groups = 2.0, 1
    for name, n in _SIZE.findall(problem):
        if name == "g":
            groups = int(n)
        else:
            total *= int(n)
    return total / groups


def kernels(lines: Iterable[str]) -> dict[str, dict[str, float]]:
    """Returns {kind: seconds, calls and flops} from the lines that oneDNN prints with ONEDNN_VERBOSE=profile_exec."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: {"seconds": 0.0, "calls": 0, "flops": 0.0})
    for line in lines:
        if line.startswith(_EXEC):
            fields = line.strip().split(",")
            row = found[KINDS.get(fields[5], "other kernels")]
            row["seconds"] += float(fields[-1]) / 1e3
            row["calls"] += 1
            row["flops"] += flops(fields[5], fields[-2])
    return dict(found)


def commands(case: str, quick: bool) -> dict[str, list[str]]:
    """Returns the commands of a case's contenders, on one core; they are those of the script for its steps."""
    network, precision = case.split("-")
    if network == "resnet":
        names, module, told = (OURS, "tfm_orbit", "keras_fit"), "tensorflow_resnet", [precision]
        told += ["4", "64"] if quick else ["16", "224"]
    elif network == "ssd":
        from lab.bench import ssd_step

        config = ssd_step.config_of(precision, 1 if quick else 8)
        names, module = ssd_step.NAMES, "tensorflow_ssd"
        told = ["train", manifest(config, benchmark="ssd")]
    elif network == "transformer":
        from lab.bench import transformer_step as step

        names, module = (OURS, "keras_fit", "keras_fused_adam"), "tensorflow_transformer"
        told = ["transformer", manifest(step.config_of(step.CASES["tiny" if quick else "big"]))]
    else:
        names, module, told = (OURS, "keras_fit"), "tensorflow_small", ["mlp", "4"]
    return {name: command(module, name, *told, one_core=True) for name in names}


def peak(precision: str, rounds: int, size: int) -> float:
    """Returns one core's flops per second in a large product, the median over rounds."""
    shape = f"{size}x{size}x{size}"
    contender = Contender("peak", command("tensorflow_products", precision, shape, one_core=True))
    contender.seconds(1)
    times = [contender.seconds(PEAK_STEPS) for _ in range(rounds)]
    contender.close()
    return PEAK_STEPS * 2.0 * size**3 / statistics.median(times)


def profiled(contender: Contender, steps: int) -> dict[str, Any]:
    """Returns the seconds of one step, and its kernels."""
    seconds = contender.seconds(steps) / steps
    found = kernels(contender.printed)
    return {
        "seconds": seconds,
        "kernels": {kind: {k: v / steps for k, v in row.items()} for kind, row in found.items()},
    }


def summary(rounds: list[dict[str, Any]], ours: list[dict[str, Any]], peak_flops: float) -> dict[str, Any]:
    """Returns a contender's row: shares from the round with the median time; its seconds over ours, within rounds."""
    times = [row["seconds"] for row in rounds]
    chosen = sorted(rounds, key=lambda row: row["seconds"])[len(rounds) // 2]
    within = [chosen["kernels"][kind] for kind in ARITHMETIC if kind in chosen["kernels"]]
    if not within:
        sys.exit(
            "oneDNN printed no kernels: this TensorFlow does not use it here; set TF_ENABLE_ONEDNN_OPTS=1"
        )
    inside, work = (sum(row[key] for row in within) for key in ("seconds", "flops"))
    all_kernels = sum(row["seconds"] for row in chosen["kernels"].values())
    return {
        "seconds": chosen["seconds"],
        "rounds_seconds": [round(t, 4) for t in times],
        "ratio_to_ours": ratio(times, [row["seconds"] for row in ours]),
        "kernels": chosen["kernels"],
        "arithmetic_seconds": inside,
        "rest_seconds": chosen["seconds"] - all_kernels,
        "flops": work,
        "of_peak": work / inside / peak_flops,
    }


def measure(case: str, peak_flops: float, rounds: int, quick: bool) -> dict[str, Any]:
    """Returns a case's rows, one per contender."""
    steps = 100 if case.startswith("perceptron") and not quick else 1
    open_ = {name: Contender(name, each, PROFILE) for name, each in commands(case, quick).items()}
    for contender in open_.values():
        contender.seconds(1)
    calls = {name: lambda c=contender: profiled(c, steps) for name, contender in open_.items()}
    found = alternate(calls, rounds)
    for contender in open_.values():
        contender.close()
    return {
        "title": TITLES[case],
        "contenders": {name: summary(each, found[OURS], peak_flops) for name, each in found.items()},
    }


def kept(output: Path, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the cases in a result file, to which a run on the same machine and versions adds; none without a file.

    Raises:
      SystemExit: the file is damaged, or is from another machine or other versions.
    """
    if not output.exists():
        return {}
    try:
        found = json.loads(output.read_text())
        differs = [
            key for key in {**found["machine"], **machine} if found["machine"].get(key) != machine.get(key)
        ]
        cases = found["step"]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        sys.exit(
            f"{output}: no results of this script ({error!r}); delete it, or name another file with --output"
        )
    if differs := sorted({*differs} - {"load_before"}):
        sys.exit(
            f"{output}: measured with another {', '.join(differs)}; leave out --cases, or name another --output"
        )
    return cases


def say(case: str, row: Mapping[str, Any]) -> None:
    """Prints a case."""
    for name, one in row["contenders"].items():
        shares = {kind: each["seconds"] / one["seconds"] for kind, each in one["kernels"].items()}
        shares["rest"] = one["rest_seconds"] / one["seconds"]
        text = ", ".join(f"{kind} {share:.1%}" for kind, share in shares.items())
        speed = f"{1e3 * one['seconds']:.1f} ms/step, {one['ratio_to_ours']:.3f} x ours"
        print(f"{case:16} {name:16} {speed}; {text}; {one['of_peak']:.0%} of the peak", flush=True)


def main() -> None:
    parser = arguments.parser(__doc__, "kernels.json", rounds=3)
    here = [case for case in CASES if case.endswith("fp32") or machine.detect().bf16]
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=CASES,
        help="default: all that this processor multiplies in hardware, in a new file",
    )
    arguments.add_quick(parser)
    options: argparse.Namespace = parser.parse_args()
    top, cases = head(), options.cases or here
    rounds, size = (1, 256) if options.quick else (options.rounds, PEAK)
    done = kept(options.output, top["machine"]) if options.cases and not options.quick else {}
    peaks = {p: peak(p, rounds, size) for p in sorted({case.split("-")[1] for case in cases})}
    print(", ".join(f"peak of {p}: {flops_ / 1e9:.0f} Gflop/s a core" for p, flops_ in peaks.items()))
    for case in cases:
        precision = case.split("-")[1]
        own = {"date": top["date"], "rounds": rounds, "peak_flops": peaks[precision]}
        done[case] = {**measure(case, peaks[precision], rounds, options.quick), "measured": own}
        say(case, done[case])
        if not options.quick:
            write({**top, "step": {c: done[c] for c in CASES if c in done}}, options.output)


if __name__ == "__main__":
    main()
