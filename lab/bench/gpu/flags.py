"""Sets of XLA flags that may make a step faster on a GPU; writes the best ones as a file of systems/launch/.

    python -m lab.bench.gpu.flags RESULT.json --system NAME   # writes systems/launch/NAME.json where a set pays

Names and defaults are from openxla/xla xla/debug_options_flags.cc. A flag that a release does not know ends the
process; the row then has the error.
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import UserError, answering
from lab.bench.harness import ROOT

WORTH = 1.01  # A set counts only if it is faster by this factor and slows no network down by it.
_CONVOLUTIONS = ("resnet", "ssd", "tsm_kinetics", "maskrcnn")
_PRODUCTS = ("transformer", "gnmt", "maskrcnn")
NETWORKS = ("gnmt", "transformer", "resnet", "maskrcnn", "ssd", "tsm_kinetics")
# Operations that XLA puts into CUDA graphs by default; a set below adds loops and branches.
_GRAPHS = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION"


class Set(NamedTuple):
    """A flag setting, why it may help, and the networks in which it can."""

    flags: str
    why: str
    networks: tuple[str, ...]


# The most promising first.
SETS = {
    "graphs_concurrent": Set("--xla_gpu_command_buffer_scheduling_mode=CONCURRENT",
        "kernels of a CUDA graph that do not depend on each other run side by side", NETWORKS),
    "graphs_with_loops": Set(f"--xla_gpu_enable_command_buffer={_GRAPHS},WHILE,CONDITIONAL",
        "loops and branches are part of CUDA graphs: no launch from the host in between", ("gnmt", "maskrcnn")),
    "loops_kept": Set("--xla_gpu_enable_while_loop_unrolling=WHILE_LOOP_UNROLLING_NO_UNROLL",
        "loops stay loops, which compile faster and take less code", ("gnmt", "maskrcnn")),
    "no_triton_products": Set("--xla_gpu_enable_triton_gemm=false",
        "products are cuBLAS's alone", ("transformer", "gnmt", "resnet")),
    "nhwc": Set("--xla_gpu_force_conv_nhwc=true",
        "convolutions keep channels last: no transposes", _CONVOLUTIONS),
    "cudnn_products": Set("--xla_gpu_cudnn_gemm_fusion_level=2",
        "cuDNN's fused products are tried beside Triton's", _PRODUCTS),
    "latency_hiding": Set("--xla_gpu_enable_latency_hiding_scheduler=true",
        "the schedule puts copies beside computation", ("resnet", "transformer")),
    "graphs_off": Set("--xla_gpu_enable_command_buffer=",
        "no CUDA graphs: shows what they give", ("gnmt", "resnet", "ssd")),
    "cudnn_fused_convolutions": Set("--xla_gpu_use_runtime_fusion=true",
        "cuDNN compiles convolutions with what follows them", _CONVOLUTIONS),
    "cublaslt": Set("--xla_gpu_enable_cublaslt=true",
        "products take cuBLASLt, with its epilogues", ("transformer", "gnmt")),
    "cudnn_norm": Set("--xla_gpu_enable_cudnn_layer_norm=true",
        "layer norm is one kernel of cuDNN", ("transformer",)),
    "fusion_autotuner": Set("--xla_gpu_experimental_enable_fusion_autotuner=true",
        "fusions are measured with several tilings", ("transformer", "resnet", "ssd", "gnmt")),
    "triton_fusions": Set("--xla_gpu_experimental_enable_triton_heroless_priority_fusion=true",
        "more fusions are compiled by Triton", ("transformer", "resnet")),
    "exhaustive_tilings": Set("--xla_gpu_exhaustive_tiling_search=true",
        "Triton's products are tried in every tiling", ("transformer",)),
    "no_autotuning": Set("--xla_gpu_autotune_level=0",
        "the first algorithm is taken: shows what measuring gives", ("resnet",)),
}  # fmt: skip


def gains(rows: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, float]:
    """Returns {network: step time without / with the set `name`} for the measured networks."""
    ratios = {}
    for network in NETWORKS:
        base, tried = rows.get(f"step/{network}", {}), rows.get(f"flags/{name}/{network}", {})
        if base.get("ms") and tried.get("ms"):
            ratios[network] = base["ms"] / tried["ms"]
    return ratios


def helps(found: Mapping[str, float]) -> bool:
    """Whether a set is faster on average and slows no network down."""
    return bool(found) and _mean(found) >= WORTH and min(found.values()) > 2 - WORTH


def _mean(found: Mapping[str, float]) -> float:
    return math.exp(sum(map(math.log, found.values())) / len(found))


def union(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Joins the settings of all sets that help, for one launch file. If two set the same flag, the better one wins."""
    chosen: dict[str, tuple[float, str]] = {}
    for name, each in SETS.items():
        found = gains(rows, name)
        flag, _, value = each.flags.partition("=")
        if helps(found) and _mean(found) > chosen.get(flag, (0.0, ""))[0]:
            chosen[flag] = _mean(found), value
    return " ".join(f"{flag}={value}" for flag, (_, value) in sorted(chosen.items()))


def settings(report: Mapping[str, Any], source: str) -> list[dict[str, str]]:
    """Returns the entries of a launch file; none if all sets together, measured on every network, do not pay."""
    rows = report["rows"]
    ratios = gains(rows, "together")
    tried = {rows[f"flags/together/{network}"]["flags"] for network in ratios}
    if len(tried) != 1 or set(ratios) != set(NETWORKS) or not helps(ratios):
        return []
    (flags,) = tried
    device = report.get("device") or "the card"
    least, most = (pick(ratios.values()) - 1 for pick in (min, max))
    why = f"{_mean(ratios) - 1:.1%} faster steps on {device}, {least:+.1%} to {most:+.1%} by network"
    return [{"variable": "XLA_FLAGS", "value": flags, "why": why, "source": source}]


@answering()
def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path, help="what lab.bench.gpu wrote")
    parser.add_argument("--system", required=True, help="NAME of systems/launch/NAME.json")
    options = parser.parse_args()
    try:
        report = json.loads(options.result.read_text(encoding="utf-8"))
        rows = report["rows"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{options.result}: {error}; give a file that lab.bench.gpu wrote") from error
    for name in (*SETS, "together"):
        if found := gains(rows, name):
            print(f"{name:26}", "  ".join(f"{n} {x:.3f}" for n, x in found.items()))
    entries = settings(report, f"lab/bench/gpu on {report.get('device')}: {options.result.name}")
    if not entries:
        print("no set is worth a launch file")
        return
    path = ROOT / "systems" / "launch" / f"{options.system}.json"
    there = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    kept = [entry for entry in there if entry["variable"] != "XLA_FLAGS"]
    path.write_text(json.dumps([*kept, *entries], indent=2) + "\n", encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: XLA_FLAGS={entries[0]['value']}")


if __name__ == "__main__":
    sys.exit(run())
