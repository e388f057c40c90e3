"""The Transformer, GNMT and one LSTM layer in PyTorch, eager, on a resident batch; run in its own environment.

Arguments: "transformer" or "gnmt" and a manifest, as the TensorFlow contenders get it; or "layer" and the shape
(length, batch, inputs, units) as JSON. Updates are the fused Adam's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch
from _serve import serve
from _torch_networks import Network, transformer
from torch import nn

Run = Callable[[int], object]


class _Gnmt(nn.Module):
    """In the reference's wiring; time-major."""

    def __init__(self, config: dict):
        super().__init__()
        width, rest = config["width"], range(config["layers"] - 1)
        self.embedding = nn.Embedding(config["vocabulary_size"], width)
        self.dropout = nn.Dropout(config["dropout"])
        self.both = nn.LSTM(width, width, bidirectional=True)
        self.encoder = nn.ModuleList(nn.LSTM(width if i else 2 * width, width) for i in rest)
        self.first = nn.LSTM(width, width)
        self.decoder = nn.ModuleList(nn.LSTM(2 * width, width) for _ in rest)
        self.query, self.memory = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.direction, self.scale = nn.Parameter(torch.randn(width)), nn.Parameter(torch.ones([]))
        self.logits = nn.Linear(width, config["vocabulary_size"])

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x, _ = self.both(self.dropout(self.embedding(source)))
        for i, lstm in enumerate(self.encoder):
            y, _ = lstm(self.dropout(x))
            x = y + x if i else y
        before = nn.functional.pad(target, [0, 0, 1, 0], value=1)[:-1]
        values = x.transpose(0, 1)
        x, _ = self.first(self.dropout(self.embedding(before)))
        context = self.attend(x.transpose(0, 1), values).transpose(0, 1)
        for i, lstm in enumerate(self.decoder):
            y, _ = lstm(self.dropout(torch.cat([x, context], -1)))
            x = y + x if i else y
        return self.logits(x)

    def attend(self, queries: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Normed Bahdanau attention: [b, q, width], [b, m, width] -> [b, q, width]."""
        direction = self.direction * (self.scale / self.direction.norm())
        sums = self.query(queries)[:, :, None] + self.memory(values)[:, None]
        return (torch.tanh(sums) @ direction).softmax(-1) @ values


def gnmt(manifest: dict, device: str) -> Network:
    """GNMT on full sentences; the loss of a sentence is summed over its tokens."""
    config, batch = manifest["config"], manifest["batch"]["train"]
    length = config["max_sequence_length"]
    tokens = torch.randint(3, config["vocabulary_size"], [2, length, batch], device=device)
    loss = nn.CrossEntropyLoss(label_smoothing=config["label_smoothing"], reduction="sum")
    network = _Gnmt(config).to(device)
    return network, tuple(tokens), lambda logits: loss(logits.flatten(0, 1), tokens[1].flatten()) / batch


def training(network: Network, config: dict) -> Run:
    """Forward, backward, clipping where the configuration has it, update."""
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
    """One LSTM, forward and backward, gradients of the inputs, too."""
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


def main() -> None:
    kind, settings = sys.argv[1], json.loads(sys.argv[2])
    torch.manual_seed(0)
    if kind == "layer":
        run, module = layer(settings)
    else:
        network = {"transformer": transformer, "gnmt": gnmt}[kind](settings, "cpu")
        run, module = training(network, settings["config"]), network[0]
    serve(run, version=torch.__version__, parameters=sum(p.numel() for p in module.parameters()))


if __name__ == "__main__":
    main()
