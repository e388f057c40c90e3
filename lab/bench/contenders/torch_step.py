"""PyTorch's contender of steps.py, and a training step for other scripts: autocast, fused update, compiled or not.

Argument: manifest ({"benchmark", "config", "batch", "precision", "programs"} as in an export). Trains eagerly on one
batch in memory. Image networks try both memory layouts of the activations at the start and keep the faster one.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable

import torch

from lab.bench.contenders.torch_networks import NETWORKS, Network

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
LAYOUTS = ("channels_last", "contiguous_format")


def stepper(network: Network, manifest: dict, device: str, compiled: bool) -> Callable[[], torch.Tensor]:
    """Returns a function that runs one training step of the network: forward, backward, clipping, update."""
    module, inputs, loss_of = network
    config, kind = manifest["config"], DTYPES[manifest["precision"]]
    optimizer, clip = _optimizer(module, config["optimizer"]), config["optimizer"]["clip_replica_norm"]
    lowered = kind != torch.float32

    def loss_and_gradients() -> torch.Tensor:
        with torch.autocast(device, dtype=kind if lowered else None, enabled=lowered):
            outputs = module(*inputs)
        loss = loss_of(_wide(outputs))
        (loss * config["loss_scale"]).backward()
        return loss

    if compiled:
        module = torch.compile(module)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_and_gradients()
        if clip:
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip * config["loss_scale"])
        optimizer.step()
        return loss.detach()

    return step


def _wide(outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Converts logits to fp32, as in our network."""
    return tuple(x.float() for x in outputs) if isinstance(outputs, tuple) else outputs.float()


def _optimizer(module: torch.nn.Module, config: dict) -> torch.optim.Optimizer:
    if config["name"] in ("adam", "lazy_adam"):
        betas = (config["beta_1"], config["beta_2"])
        return torch.optim.Adam(module.parameters(), lr=1e-4, betas=betas, eps=config["epsilon"], fused=True)
    momentum, decay = config["momentum"], config["weight_decay"]
    return torch.optim.SGD(module.parameters(), lr=1e-3, momentum=momentum, weight_decay=decay, fused=True)


def runner(manifest: dict, layout: str | None) -> tuple[Callable[[int], None], int]:
    """Returns (function that runs N steps, number of parameters)."""
    torch.manual_seed(0)
    module, inputs, loss_of = NETWORKS[manifest["benchmark"]](manifest, "cpu")
    if layout == "contiguous_format":
        module = module.to(memory_format=torch.contiguous_format)
        inputs = tuple(x.contiguous() for x in inputs)
    step = stepper((module, inputs, loss_of), manifest, "cpu", compiled=False)

    def run(steps: int) -> None:
        for _ in range(steps):
            last = step()
        float(last)

    return run, sum(p.numel() for p in module.parameters())


def make(manifest: str) -> tuple[Callable[[int], None], dict[str, object]]:
    """Returns (function that runs N steps in the faster layout, facts about the contender)."""
    content, seconds = json.loads(manifest), {}
    if content["benchmark"] in ("gnmt", "transformer"):  # Tokens have one layout.
        run, parameters = runner(content, None)
        return run, {"version": torch.__version__, "parameters": parameters}
    for layout in LAYOUTS:
        run, _ = runner(content, layout)
        run(1)
        began = time.perf_counter()
        run(1)
        seconds[layout] = time.perf_counter() - began
        del run
        gc.collect()
    best = min(seconds, key=seconds.get)
    run, parameters = runner(content, best)
    about = {"version": torch.__version__, "parameters": parameters}
    return run, {**about, "layout": best, "layouts": seconds}
