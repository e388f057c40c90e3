"""PyTorch's contender of video.py and ssd_step.py: inference or training steps on a resident batch.

Arguments: "infer" or "train", manifest ({"benchmark", "config", "batch", "precision", "programs"} as an export has
them). Eager; inference without gradients and with the moving averages, training with fused SGD. Both
layouts of the activations are tried at the start, and the faster one stays.
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
)  # channels_last_3d of 3-D networks, as torch_networks.py has it.


def runner(mode: str, manifest: dict, layout: str) -> tuple[Callable[[int], None], int]:
    """What runs N steps, and the network's parameters."""
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
    """What runs so many steps a call in the faster layout, and what it says of itself."""
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
