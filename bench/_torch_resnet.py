"""ResNet-50 v1.5 in PyTorch, eager, channels_last: a contender of resnet_step.py, run in its own environment."""

from __future__ import annotations

import json
import sys
import time

import torch
from torch import nn


class Bottleneck(nn.Module):
    """1x1, 3x3 with the stride, 1x1, and the shortcut."""

    def __init__(self, channels: int, filters: int, stride: int, project: bool):
        super().__init__()
        sizes = ((channels, filters, 1, 1), (filters, filters, 3, stride), (filters, 4 * filters, 1, 1))
        self.convolutions = nn.ModuleList(
            nn.Conv2d(i, o, k, s, padding=k // 2, bias=False) for i, o, k, s in sizes
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(o) for _, o, _, _ in sizes)
        self.shortcut = nn.Identity()
        if project:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * filters, 1, stride, bias=False), nn.BatchNorm2d(4 * filters)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms)):
            y = norm(convolution(y))
            if i < 2:
                y = torch.relu_(y)
        return torch.relu_(y + self.shortcut(x))


def resnet50(classes: int) -> nn.Module:
    """25,557,032 parameters with 1000 classes."""
    layers = [
        nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        filters = 64 * 2**stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Bottleneck(channels, filters, stride, project=block == 0))
            channels = 4 * filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def main() -> None:
    """Arguments: precision, batch, pixels, classes. Answers each line "N" with the seconds of N steps, as
    JSON.
    """
    precision, batch, pixels, classes = sys.argv[1], *map(int, sys.argv[2:])
    torch.manual_seed(0)
    model = resnet50(classes).to(memory_format=torch.channels_last)
    images = torch.randn(batch, 3, pixels, pixels).to(memory_format=torch.channels_last)
    labels = torch.arange(batch) % classes
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
        return float(loss)

    count = sum(p.numel() for p in model.parameters())
    print(json.dumps({"version": torch.__version__, "parameters": count}), flush=True)
    for line in sys.stdin:
        began, used = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            loss = step()
        seconds, cpu = time.perf_counter() - began, time.process_time() - used
        print(json.dumps({"seconds": seconds, "cpu_seconds": cpu, "loss": loss}), flush=True)


if __name__ == "__main__":
    main()
