"""The exported networks in PyTorch, written as a PyTorch user would: channels_last, autocast.

`NETWORKS[benchmark](manifest, device)` returns (module, inputs, loss_of); `loss_of(module(*inputs))` is a step's loss.
Sizes come from the export's configuration.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from lab.bench.contenders.torch_resnet import Bottleneck, branch, resnet50

# ssd/config.py: anchors per cell of each level of the published network.
_PER_CELL = (4, 6, 6, 6, 4, 4)
Network = tuple[nn.Module, tuple[torch.Tensor, ...], Callable[[Any], torch.Tensor]]


def _images(config: dict, batch: int, device: str) -> torch.Tensor:
    """Normalized images, NCHW in channels_last memory format."""
    shape = [batch, 3, config["image_size"], config["image_size"]]
    return torch.randn(shape, device=device).to(memory_format=torch.channels_last)


def resnet(manifest: dict, device: str) -> Network:
    """ResNet-50 v1.5 with 64 base channels, label smoothing."""
    config, batch = manifest["config"], manifest["batch"]["train"]
    if config["model"] != "resnet50" or config["width"] != 64:
        raise ValueError(f"{config['model']} of width {config['width']}: only resnet50 of width 64 is here")
    labels = torch.arange(batch, device=device) % config["num_classes"]
    loss = nn.CrossEntropyLoss(label_smoothing=config["label_smoothing"])
    network = resnet50(config["num_classes"]).to(device, memory_format=torch.channels_last)
    return network, (_images(config, batch, device),), lambda logits: loss(logits, labels)


class _Shifted(nn.Module):
    """A bottleneck whose branch sees some channels of the previous and the next frame."""

    def __init__(self, block: Bottleneck, frames: int, fraction: int):
        super().__init__()
        self.block, self.frames, self.fraction = block, frames, fraction

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.unflatten(0, [-1, self.frames])
        fold = x.shape[1] // self.fraction
        later, earlier, rest = y[:, 1:, :fold], y[:, :-1, fold : 2 * fold], y[:, :, 2 * fold :]
        later = F.pad(later, [0, 0, 0, 0, 0, 0, 0, 1])
        earlier = F.pad(earlier, [0, 0, 0, 0, 0, 0, 1, 0])
        last = x.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if last else torch.contiguous_format
        y = torch.cat([later, earlier, rest], 2).flatten(0, 1).contiguous(memory_format=layout)
        y = branch(y, self.block.convolutions, self.block.norms)
        return torch.relu_(y + self.block.shortcut(x))


class _Frames(nn.Module):
    """Applies an image network to clips [b * T, 3, H, W]: averages the frames' features, then classifies."""

    def __init__(self, images: nn.Sequential, frames: int):
        super().__init__()
        self.features, self.classifier, self.frames = images[:-1], images[-1], frames

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x).unflatten(0, [-1, self.frames]).mean(1))


def tsm_kinetics(manifest: dict, device: str) -> Network:
    """TSM on ResNet-50."""
    config, batch = manifest["config"], manifest["batch"]["train"]
    if (config["model"], config["width"], list(config["blocks"])) != ("tsm", 64, [3, 4, 6, 3]):
        raise ValueError(f"{config['model']} of width {config['width']}: only TSM of ResNet-50 is here")
    images, clips = resnet50(config["num_classes"]), manifest["programs"][0]["inputs"]
    count = next(a["shape"][1] for a in clips if a["name"].endswith("/frames"))
    labels = torch.arange(batch, device=device) % config["num_classes"]
    for i, layer in enumerate(images):
        if isinstance(layer, Bottleneck):
            images[i] = _Shifted(layer, count, 8)  # An eighth each way, as tsm_kinetics/config.py has it.
    network = _Frames(images, count).to(device, memory_format=torch.channels_last)
    frames = _images(config, batch * count, device)
    return network, (frames,), lambda logits: F.cross_entropy(logits, labels)


class _Basic(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, channels: int, filters: int, stride: int):
        super().__init__()
        self.first = nn.Conv2d(channels, filters, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(filters), nn.BatchNorm2d(filters)])
        self.shortcut = nn.Identity()
        if channels != filters:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, filters, 1, stride, bias=False), nn.BatchNorm2d(filters)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu_(self.norms[0](self.first(x)))
        return torch.relu_(self.norms[1](self.second(y)) + self.shortcut(x))


class _SSD(nn.Module):
    """SSD on the first stages of ResNet-34: (codes [b, A, 4], logits [b, A, classes])."""

    def __init__(self, config: dict):
        super().__init__()
        w, self.classes = config["width"], config["num_classes"]
        layers: list[nn.Module] = [nn.Conv2d(3, w, 7, 2, padding=3, bias=False), nn.BatchNorm2d(w)]
        layers += [nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
        channels = w
        for stage, (blocks, stride) in enumerate(zip((3, 4, 6), (1, 2, 1))):
            for block in range(blocks):
                layers.append(_Basic(channels, w * 2**stage, stride if block == 0 else 1))
                channels = w * 2**stage
        self.backbone = nn.Sequential(*layers)
        sizes = [(4 * w, 8 * w, 2, 1)] * 2 + [(2 * w, 4 * w, 2, 1)] + [(2 * w, 4 * w, 1, 0)] * 2
        extras, maps = [], [channels]
        for squeeze, filters, stride, pad in sizes:
            extras.append(
                nn.Sequential(
                    nn.Conv2d(channels, squeeze, 1),
                    nn.ReLU(inplace=True),
                    nn.Conv2d(squeeze, filters, 3, stride, padding=pad),
                    nn.ReLU(inplace=True),
                )
            )
            channels = filters
            maps.append(channels)
        self.extras = nn.ModuleList(extras)
        self.heads = nn.ModuleList(
            nn.Conv2d(c, n * (4 + self.classes), 3, padding=1) for c, n in zip(maps, _PER_CELL)
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs, x = [], self.backbone(x)
        for i, head in enumerate(self.heads):
            x = self.extras[i - 1](x) if i else x
            outputs.append(head(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 4 + self.classes))
        return tuple(torch.cat(outputs, 1).float().split([4, self.classes], -1))


def ssd(manifest: dict, device: str) -> Network:
    """SSD-300 with the loss for given targets; leaves out the matching of boxes, which takes little time."""
    config, batch = manifest["config"], manifest["batch"]["train"]
    if config["network"] != "published":
        raise ValueError(f"config.network={config['network']}: only the published SSD is here")
    network = _SSD(config).to(device, memory_format=torch.channels_last)
    images = _images(config, batch, device)
    with torch.no_grad():
        anchors = network(images[:1])[0].shape[1]
    classes = torch.zeros([batch, anchors], dtype=torch.int64, device=device)
    classes[:, ::200] = 1 + torch.arange(len(range(0, anchors, 200)), device=device) % (
        config["num_classes"] - 1
    )
    offsets, ratio = torch.randn([batch, anchors, 4], device=device), config["negatives_per_positive"]

    def loss_of(outputs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        codes, logits = outputs
        positive = classes > 0
        count = positive.sum(1)
        boxes = (F.smooth_l1_loss(codes, offsets, reduction="none").sum(-1) * positive).sum(1)
        entropy = F.cross_entropy(logits.transpose(1, 2), classes, reduction="none")
        order = entropy.masked_fill(positive, -1).argsort(1, descending=True).argsort(1)
        hard = order < ratio * count[:, None]
        return ((boxes + (entropy * (positive | hard)).sum(1)) / count).mean()

    return network, (images,), loss_of


class _Sublayer(nn.Module):
    """x + dropout(f(norm(x)))."""

    def __init__(self, width: int, inner: nn.Module, dropout: float):
        super().__init__()
        self.norm, self.inner, self.dropout = nn.LayerNorm(width, eps=1e-6), inner, nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, *context: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.inner(self.norm(x), *context))


class _Attention(nn.Module):
    """Multi-head attention without biases, to itself or to `source`."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor | None = None
    ) -> torch.Tensor:
        source = x if source is None else source
        q, k, v = (
            f(y).unflatten(-1, [self.heads, -1]).transpose(1, 2)
            for f, y in ((self.query, x), (self.key, source), (self.value, source))
        )
        rate = self.rate if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, mask, rate)
        return self.out(y.transpose(1, 2).flatten(2))


class _Transformer(nn.Module):
    """Pre-norm encoder and decoder, one embedding for source, target and softmax."""

    def __init__(self, config: dict):
        super().__init__()
        width, hidden, self.width = config["width"], config["hidden"], config["width"]
        self.embedding = nn.Embedding(config["vocabulary_size"], width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.dropout = nn.Dropout(config["residual_dropout"])

        def sublayer(inner: nn.Module) -> _Sublayer:
            return _Sublayer(width, inner, config["residual_dropout"])

        def attention() -> _Sublayer:
            return sublayer(_Attention(width, config["heads"], config["attention_dropout"]))

        def feed() -> _Sublayer:
            drop = nn.Dropout(config["relu_dropout"])
            return sublayer(
                nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), drop, nn.Linear(hidden, width))
            )

        count = range(config["layers"])
        self.encoder = nn.ModuleList(nn.ModuleList([attention(), feed()]) for _ in count)
        self.decoder = nn.ModuleList(nn.ModuleList([attention(), attention(), feed()]) for _ in count)
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        length = config["packed_length"]
        rates = torch.exp(-math.log(1e4) * torch.arange(width // 2) / (width // 2 - 1))
        angles = torch.arange(length)[:, None] * rates
        self.register_buffer("signal", torch.cat([angles.sin(), angles.cos()], 1), persistent=False)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        causal = mask & torch.ones_like(mask).tril()
        x = self.dropout(self.embedding(inputs) * self.width**0.5 + self.signal)
        for attention, feed in self.encoder:
            x = feed(attention(x, mask))
        source = self.norms[0](x)
        x = self.embedding(F.pad(targets, [1, 0])[:, :-1]) * self.width**0.5 + self.signal
        x = self.dropout(x)
        for attention, look, feed in self.decoder:
            x = feed(look(attention(x, causal), mask, source))
        return F.linear(self.norms[1](x), self.embedding.weight).float()


def transformer(manifest: dict, device: str) -> Network:
    """Transformer-big on packed sequences, with masks as tensors."""
    config, batch = manifest["config"], manifest["batch"]["train"]
    shape = [batch, config["packed_length"]]
    tokens = torch.randint(2, config["vocabulary_size"], [2, *shape], device=device)
    mask = torch.ones([batch, 1, shape[1], shape[1]], dtype=torch.bool, device=device)
    loss = nn.CrossEntropyLoss(label_smoothing=config["label_smoothing"])
    network = _Transformer(config).to(device)
    return (
        network,
        (tokens[0], tokens[1], mask),
        lambda logits: loss(logits.flatten(0, 1), tokens[1].flatten()),
    )


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


def gnmt(manifest: dict, device: str) -> Network:
    """GNMT on full sentences; the loss sums over each sentence's tokens."""
    config, batch = manifest["config"], manifest["batch"]["train"]
    length = config["max_sequence_length"]
    tokens = torch.randint(3, config["vocabulary_size"], [2, length, batch], device=device)
    loss = nn.CrossEntropyLoss(label_smoothing=0.1, reduction="sum")
    network = _Gnmt(config).to(device)
    return network, tuple(tokens), lambda logits: loss(logits.flatten(0, 1), tokens[1].flatten()) / batch


NETWORKS = {f.__name__: f for f in (resnet, tsm_kinetics, ssd, transformer, gnmt)}
