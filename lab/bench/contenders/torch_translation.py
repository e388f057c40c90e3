"""The Transformer, GNMT and one LSTM layer in PyTorch, eager, on one batch in memory.

Arguments: "transformer" or "gnmt" and a manifest, as for the TensorFlow contenders; or "layer" and the shape
(length, batch, inputs, units) as JSON. Updates use the fused Adam.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from torch import nn

from lab.bench.contenders.torch_gnmt import gnmt
from lab.bench.contenders.torch_networks import Network, transformer

Run = Callable[[int], object]


def training(network: Network, config: dict) -> Run:
    """Runs steps: forward, backward, clipping if the configuration has it, update."""
    module, inputs, loss_of = network
    o = config["optimizer"]
    betas = (o["beta_1"], o["beta_2"])
    optimizer = torch.optim.Adam(
        module.parameters(), lr=o["base_learning_rate"], betas=betas, eps=o["epsilon"], fused=True
    )

    def run(steps: int) -> float:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(module(*inputs))
            loss.backward()
            if o["clip_replica_norm"]:
                nn.utils.clip_grad_norm_(module.parameters(), o["clip_replica_norm"])
            optimizer.step()
        return float(loss.detach())

    return run


def layer(shape: list[int]) -> tuple[Run, nn.Module]:
    """One LSTM, forward and backward, including the gradients of the inputs."""
    length, batch, inputs, units = shape
    lstm = nn.LSTM(inputs, units)
    x, upstream = (
        torch.randn([length, batch, inputs], requires_grad=True),
        torch.randn([length, batch, units]),
    )

    def run(steps: int) -> None:
        for _ in range(steps):
            lstm.zero_grad(set_to_none=True)
            x.grad = None
            lstm(x)[0].backward(upstream)

    return run, lstm


def make(kind: str, settings: str) -> tuple[Run, dict[str, object]]:
    """Returns (function that runs N steps, facts about the contender)."""
    told = json.loads(settings)
    torch.manual_seed(0)
    if kind == "layer":
        run, module = layer(told)
    else:
        network = {"transformer": transformer, "gnmt": gnmt}[kind](told, "cpu")
        run, module = training(network, told["config"]), network[0]
    parameters = sum(p.numel() for p in module.parameters())
    return run, {"version": torch.__version__, "parameters": parameters}
