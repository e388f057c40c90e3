"""Interprets a replay's numbers: speeds, shares of a peak, and which differences are too large."""

import math
import statistics
from typing import Any

# Dense matrix products per second, in 1e12, by part of the device's name and precision (fp32 on NVIDIA's Ampere and
# later is TF32). From the vendors' data sheets (NVIDIA's SXM parts), without sparsity. A TPU v2 or v3 device is one
# of a chip's two cores.
PEAKS = {
    "B200": {"bf16": 2250, "fp16": 2250, "fp64": 37},
    "H200": {"bf16": 989, "fp16": 989, "fp32": 494.5, "fp64": 67},
    "H100": {"bf16": 989, "fp16": 989, "fp32": 494.5, "fp64": 67},
    "A100": {"bf16": 312, "fp16": 312, "fp32": 156, "fp64": 19.5},
    "V100": {"fp16": 125, "fp32": 15.7, "fp64": 7.8},
    "TPU v2": {"bf16": 22.5},
    "TPU v3": {"bf16": 61.5},
    "TPU v4": {"bf16": 275},
    "TPU v5 lite": {"bf16": 197},
    "TPU v5": {"bf16": 459},
    "TPU v6 lite": {"bf16": 918},
}
# Relative tolerances of a loss: the first loss, the two that follow. ELSEWHERE is for a device other than the
# reference's: it rounds elsewhere, and its fp32 products may be TF32.
TOLERANCES = {"fp64": (1e-9, 1e-6), "fp32": (1e-6, 1e-6), "bf16": (2e-2, 2e-2), "fp16": (5e-3, 5e-3)}
ELSEWHERE = {"fp32": (2e-3, 1e-2)}
# Minimum tolerances below 64 bits for a step that chooses hard negatives or regions: rounding may change the choice.
# Mask R-CNN's third loss is off by 2e-2 in fp32 and by 1e-14 in fp64.
CHOOSING = (1e-5, 5e-2)
# Tolerance of the weights after a step, relative to their norm. Below 64 bits there is none: an ill-conditioned
# network's gradients differ by several percent between two correct compilations.
STATE_TOLERANCE = {"fp64": 1e-9}
# XLA:GPU hands "convolution + factor * tensor" to cuDNN as one kernel, whose factor is a 32-bit number even if the
# tensors are float64. So a weight decay is rounded (docs/gpu.md). Without this pass the sum is a kernel of XLA's.
EXACT_FLAGS = {"fp64": "--xla_disable_hlo_passes=cudnn-fused-convolution-rewriter"}


def speed(replay: Any, seconds: list[float], peak: float | None) -> dict[str, Any]:
    """Computes speeds and shares of a peak from the measured seconds of a step."""
    manifest, kind = replay.manifest, replay.program["kind"]
    groups = manifest["num_replicas"] // manifest["partitions"]
    median, flops = statistics.median(seconds), replay.program["cost"]["matrix_flops"]
    if replay.program["cost"]["in_loops"] and manifest["forward_flops_per_example"]:
        # The program counts a loop's body once, so use the model's FLOPs; a backward pass counts as two forward passes.
        flops = (
            manifest["forward_flops_per_example"] * manifest["batch"][kind] * (3 if kind == "train" else 1)
        )
    analysis = replay.compiled.cost_analysis() or {}
    analysis = analysis[0] if isinstance(analysis, list) else analysis
    memory = replay.compiled.memory_analysis()
    sizes = ("argument_size_in_bytes", "output_size_in_bytes", "alias_size_in_bytes", "temp_size_in_bytes")
    return {
        "ms": 1000 * median,
        "ms_of_rounds": [round(1000 * s, 3) for s in seconds],
        "examples_per_second": manifest["batch"][kind] * groups / median,
        "matrix_tflop": flops / 1e12,
        "tflops": flops / 1e12 / median,
        "peak_tflops": peak,
        "share_of_peak": flops / 1e12 / median / peak if peak else None,
        "compiler_tflop": analysis.get("flops", math.nan) / 1e12,
        "compiler_gb_accessed": analysis.get("bytes accessed", math.nan) / 1e9,
        "memory_gb": {part.removesuffix("_in_bytes"): getattr(memory, part, 0) / 1e9 for part in sizes},
        "device_memory": _device_memory(),
        "compile_seconds": replay.compile_seconds,
    }


def _device_memory() -> dict[str, float]:
    import jax

    stats = jax.devices()[0].memory_stats() or {}
    return {f"{k}_gb": stats[k] / 1e9 for k in ("peak_bytes_in_use", "bytes_limit") if k in stats}


def verdict(report: dict, precision: str, same_platform: bool, tolerance: float | None) -> list[str]:
    """Returns the differences that exceed their tolerance."""
    allowed = TOLERANCES[precision] if same_platform else ELSEWHERE.get(precision, TOLERANCES[precision])
    if report["chooses"] and precision != "fp64":
        allowed = tuple(map(max, allowed, CHOOSING))
    allowed = (tolerance, tolerance) if tolerance is not None else allowed
    wrong = []
    for i, error in enumerate(report.get("loss_errors", ())):
        bound = allowed[min(i, 1)]
        if not error <= bound:
            wrong.append(
                f"loss {i + 1} is {report['losses'][i]!r}, {report['expected_losses'][i]!r} expected: {error:.2g}, "
                f"{bound:.0e} allowed"
            )
    wrong += [f"{name} is not the same on all replicas" for name in report.get("unequal_copies", ())]
    bound = STATE_TOLERANCE.get(precision)
    for what in ("state_error", "change_error"):
        if bound and what in report and not report[what]["relative"] <= bound:
            wrong.append(
                f"{what}: {report[what]['of']} by {report[what]['relative']:.2g}, {bound:.0e} allowed"
            )
    if bound:
        for name, error in report.get("output_errors", {}).items():
            if not error <= bound:
                wrong.append(f"{name} by {error:.2g}, {bound:.0e} allowed")
    return wrong


def peak_of(device: Any, precision: str) -> float | None:
    """Returns TFLOP/s from PEAKS for a jax device, or None."""
    kind = device.device_kind
    return next((peaks.get(precision) for name, peaks in PEAKS.items() if name in kind), None)


def show(report: dict) -> None:
    """Prints the report for people."""
    print(f"{report['program']}:")
    if "loss_errors" in report:
        worst = max(report["loss_errors"])
        print(
            f"  losses {', '.join(f'{x:.9g}' for x in report['losses'])}; at most {worst:.2g} from the manifest's"
        )
        state, change = report["state_error"], report["change_error"]
        print(
            f"  state after a step: {state['relative']:.2g}, its change: {change['relative']:.2g} ({change['of']})"
        )
    elif "losses" in report:
        print(
            f"  losses {', '.join(f'{x:.9g}' for x in report['losses'])}; the manifest has none to compare with"
        )
    for name, error in report.get("output_errors", {}).items():
        print(f"  {name}: {error:.2g} from the manifest's")
    if "ms" in report:
        share = f", {report['share_of_peak']:.1%} of the peak" if report["share_of_peak"] else ""
        memory = report["memory_gb"]
        print(f"  {report['ms']:.2f} ms, {report['examples_per_second']:.1f} examples/s")
        print(f"  {report['tflops']:.3g} TFLOP/s of {report['matrix_tflop']:.4g} in matrix products{share}")
        print(f"  {memory['argument_size']:.3g} GB of arguments, {memory['temp_size']:.3g} GB besides")
    for line in report["differs"]:
        print(f"  DIFFERS: {line}")
