"""GNMT in PyTorch, written as a user of its LSTM would, for torch_networks.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class _Gnmt(nn.Module):
    """Wired as in the reference; time-major."""

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


def gnmt(
    manifest: dict, device: str
) -> tuple[nn.Module, tuple[torch.Tensor, ...], Callable[[Any], torch.Tensor]]:
    """GNMT on full sentences; the loss sums over each sentence's tokens."""
    config, batch = manifest["config"], manifest["batch"]["train"]
    length = config["max_sequence_length"]
    tokens = torch.randint(3, config["vocabulary_size"], [2, length, batch], device=device)
    loss = nn.CrossEntropyLoss(label_smoothing=config["label_smoothing"], reduction="sum")
    network = _Gnmt(config).to(device)
    return network, tuple(tokens), lambda logits: loss(logits.flatten(0, 1), tokens[1].flatten()) / batch
