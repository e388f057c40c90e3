"""A training step of a network in PyTorch: autocast, backward, fused update, compiled or not."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lab.bench.contenders.torch_networks import Network

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def stepper(network: Network, manifest: dict, device: str, compiled: bool) -> Callable[[], torch.Tensor]:
    """Returns a function that runs one training step of the network: forward, backward, update."""
    module, inputs, loss_of = network
    optimizer, kind = _optimizer(module, manifest["config"]["optimizer"]), DTYPES[manifest["precision"]]
    lowered = kind != torch.float32

    def loss_and_gradients() -> torch.Tensor:
        with torch.autocast(device, dtype=kind if lowered else None, enabled=lowered):
            outputs = module(*inputs)
        loss = loss_of(_wide(outputs))
        (loss * manifest["config"]["loss_scale"]).backward()
        return loss

    if compiled:
        module = torch.compile(module)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_and_gradients()
        optimizer.step()
        return loss.detach()

    return step


def _wide(outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Converts logits to fp32, as in our network."""
    return tuple(x.float() for x in outputs) if isinstance(outputs, tuple) else outputs.float()


def _optimizer(module: torch.nn.Module, config: dict) -> torch.optim.Optimizer:
    if config["name"] in ("adam", "lazy_adam"):
        return torch.optim.Adam(module.parameters(), lr=1e-4, fused=True)
    momentum, decay = config["momentum"], config["weight_decay"]
    return torch.optim.SGD(module.parameters(), lr=1e-3, momentum=momentum, weight_decay=decay, fused=True)
