"""PyTorch's contender of video.py and ssd_step.py: inference or training steps on one batch in memory.

Arguments: "infer" or "train", manifest ({"benchmark", "config", "batch", "precision", "programs"} as in an export).
Runs eagerly: inference without gradients and with the moving averages, training with fused SGD. It tries both
memory layouts of the activations at the start and keeps the faster one.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable

import torch

from lab.bench.contenders.torch_networks import NETWORKS
from lab.bench.contenders.torch_step import DTYPES, stepper

LAYOUTS = (
    "channels_last",
    "contiguous_format",
)  # channels_last_3d for 3-D networks, as in torch_networks.py.


def runner(mode: str, manifest: dict, layout: str) -> tuple[Callable[[int], None], int]:
    """Returns (function that runs N steps, number of parameters)."""
    torch.manual_seed(0)
    module, inputs, loss_of = NETWORKS[manifest["benchmark"]](manifest, "cpu")
    if layout == "contiguous_format":
        module = module.to(memory_format=torch.contiguous_format)
        inputs = tuple(x.contiguous() for x in inputs)
    if mode == "train":
        step = stepper((module, inputs, loss_of), manifest, "cpu", compiled=False)
    else:
        kind = DTYPES[manifest["precision"]]
        module.eval()

        def step() -> torch.Tensor:
            with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=kind != torch.float32):
                return module(*inputs)

    def run(steps: int) -> None:
        for _ in range(steps):
            last = step()
        float(last.flatten()[0])

    return run, sum(p.numel() for p in module.parameters())


def make(mode: str, manifest: str) -> tuple[Callable[[int], None], dict[str, object]]:
    """Returns (function that runs N steps in the faster layout, facts about the contender)."""
    told, seconds = json.loads(manifest), {}
    for layout in LAYOUTS:
        run, _ = runner(mode, told, layout)
        run(1)
        began = time.perf_counter()
        run(1)
        seconds[layout] = time.perf_counter() - began
        del run
        gc.collect()
    best = min(seconds, key=seconds.get)
    run, parameters = runner(mode, told, best)
    about = {"version": torch.__version__, "parameters": parameters}
    return run, {**about, "layout": best, "layouts": seconds}
