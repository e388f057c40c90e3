"""ResNet-50 v1.5 in PyTorch, and the bottleneck that other networks use."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def branch(x: torch.Tensor, convolutions: Iterable[nn.Module], norms: Iterable[nn.Module]) -> torch.Tensor:
    """Applies a bottleneck's three convolutions, each with its norm, and ReLU after all but the last."""
    for i, (convolution, norm) in enumerate(zip(convolutions, norms)):
        x = norm(convolution(x))
        if i < 2:
            x = torch.relu_(x)
    return x


class Bottleneck(nn.Module):
    """1x1, 3x3 with the stride, 1x1, and a shortcut."""

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
        return torch.relu_(branch(x, self.convolutions, self.norms) + self.shortcut(x))


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
