"""ResNet-50 v1.5 in PyTorch, the bottleneck that other networks use, and both I3Ds of tsm_kinetics.

The I3Ds are ResNet-50 with kernels over time:

- 3x3x3: after Hara et al.; every 3x3 convolution is inflated; 47.0 million parameters with 400 classes.
- 3x1x1: after Wang et al., wired as in facebookresearch/video-nonlocal-net; the first 1x1 of every other block is
  inflated; 28.0 million parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

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


class _Time(NamedTuple):
    """Frames per kernel, and strides over time; `first` by stage and block."""

    stem: int
    stem_stride: int
    middle: int
    strides: tuple[int, ...]
    first: tuple[tuple[int, ...], ...]
    pool2: bool


TIMES = {
    "i3d_3x3x3": _Time(7, 1, 3, (1, 2, 2, 2), ((1,) * 3, (1,) * 4, (1,) * 6, (1,) * 3), False),
    "i3d_3x1x1": _Time(5, 2, 1, (1, 1, 1, 1), ((3, 3, 3), (3, 1, 3, 1), (3, 1, 3, 1, 3, 1), (1, 3, 1)), True),
}


def _conv(channels: int, filters: int, time: int, side: int, strides: tuple[int, int] = (1, 1)) -> nn.Conv3d:
    size, padding = (time, side, side), (time // 2, side // 2, side // 2)
    return nn.Conv3d(channels, filters, size, (strides[0], *strides[1:] * 2), padding, bias=False)


class _Bottleneck3d(nn.Module):
    """1x1 (or 3x1x1), 3x3 (or 3x3x3) with the strides, 1x1, and a shortcut."""

    def __init__(self, channels: int, filters: int, first: int, middle: int, strides: tuple[int, int]):
        super().__init__()
        self.convolutions = nn.ModuleList(
            [
                _conv(channels, filters, first, 1),
                _conv(filters, filters, middle, 3, strides),
                _conv(filters, 4 * filters, 1, 1),
            ]
        )
        self.norms = nn.ModuleList(nn.BatchNorm3d(n) for n in (filters, filters, 4 * filters))
        self.shortcut = nn.Identity()
        if channels != 4 * filters:
            projection = _conv(channels, 4 * filters, 1, 1, strides)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm3d(4 * filters))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu_(branch(x, self.convolutions, self.norms) + self.shortcut(x))


def i3d(model: str, classes: int) -> nn.Module:
    """Returns a network: clips [b, 3, T, H, W] -> logits [b, classes]."""
    time = TIMES[model]
    layers: list[nn.Module] = [
        _conv(3, 64, time.stem, 7, (time.stem_stride, 2)),
        nn.BatchNorm3d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool3d(3, 2, padding=1),
    ]
    channels = 64
    for stage, firsts in enumerate(time.first):
        filters = 64 * 2**stage
        for block, first in enumerate(firsts):
            space = 2 if stage > 0 and block == 0 else 1
            strides = (time.strides[stage] if block == 0 else 1, space)
            layers.append(_Bottleneck3d(channels, filters, first, time.middle, strides))
            channels = 4 * filters
        if stage == 0 and time.pool2:
            layers.append(nn.MaxPool3d((3, 1, 1), (2, 1, 1), padding=(1, 0, 0)))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(channels, classes))
