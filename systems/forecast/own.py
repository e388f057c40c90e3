"""What this project's own code takes, where a card's steps were measured, and ordinary code.

The law's minutes are those of tuned submissions. lab/bench/results/gpu/h200.json has this project's steps on one H200.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

STEPS = Path(__file__).resolve().parents[2] / "lab/bench/results/gpu/h200.json"
CHIP = "H200-SXM"
# Minutes of ordinary code over the law's: NVIDIA's examples (NVIDIA/DeepLearningExamples, README of each) make
# 16,925 images/s of ResNet-50 on 8 A100-80GB where the forecast implies 29,414 (1.7), and train GNMT on a DGX-1 in 46.2
# minutes where it says 32.8 (1.4); this project's training loop on one H200 makes 6,947 images/s where it implies
# about 8,300 (1.2).
ORDINARY = (1.2, 1.8)


@functools.cache
def rates() -> dict[str, float]:
    """Examples per second of this project's training steps on one H200, by benchmark; {} where no file has them."""
    if not STEPS.is_file():
        return {}
    rows = json.loads(STEPS.read_text(encoding="utf-8"))["rows"]
    return {
        name.removeprefix("step/"): row["examples_per_second"]
        for name, row in rows.items()
        if name.startswith("step/")
    }


def minutes(benchmark: str, chip: str, accelerators: int, examples: float) -> float | None:
    """Minutes of the training steps alone over `examples`, without exchange; None if no step was measured."""
    rate = rates().get(benchmark)
    return examples / rate / accelerators / 60 if rate and chip == CHIP else None
