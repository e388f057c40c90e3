"""Whether a benchmark's model fits into the memory of a number of accelerators.

The bytes of weights, gradients and optimizer state are a lower bound of what a run needs: activations come on top.
A run divides them among its accelerators (sharded state, tensor and pipeline parallelism).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

# Parameters by benchmark, and bytes for each: 16 for training with Adam in mixed precision (weights and gradients of
# two bytes, master weights and two moments of four: Rajbhandari et al., ZeRO, 2020, section 3.1); 2 for the frozen
# weights of a fine-tuning, whose adapters are small. Sizes: the benchmarks' names, and mlcommons/training's README
# of each.
_MODELS = {
    "llama2_70b_lora": (70e9, 2), "llama31_8b": (8e9, 16), "llama31_405b": (405e9, 16), "gpt3": (175e9, 16),
    "gpt_oss_20b": (21e9, 16), "deepseekv3_671b": (671e9, 16), "flux1": (11.9e9, 16), "bert": (0.34e9, 16),
    "stable_diffusion": (0.865e9, 16),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Fit:
    """Bytes that a model's state needs, and those that the accelerators have; `why` says it in words."""

    needed: float
    held: float
    why: str

    @property
    def fits(self) -> bool:
        return self.needed <= self.held


def fit(benchmark: str, chip: Mapping[str, Any], accelerators: int) -> Fit | None:
    """Whether a benchmark's state fits; None if its size or the accelerator's memory is not known."""
    if benchmark not in _MODELS or not chip.get("memory"):
        return None
    parameters, each = _MODELS[benchmark]
    needed, held = parameters * each, chip["memory"] * accelerators
    why = (
        f"{parameters / 1e9:g} billion parameters at {each} bytes need {needed / 1e9:,.0f} GB; "
        f"{accelerators} x {chip['name']} have {held / 1e9:,.0f}"
    )
    return Fit(needed, held, why)
