"""Hand-counted costs, in the form of costs.json, of untraced networks and of beam-search steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Row = list[Any]
# Mean sentence length of WMT en-de in subwords, source and target: a pair has about 2 x 27 (NVIDIA's v0.6 DGX-1
# transformer log: 74,800 target tokens in 2,597 pairs are 28.8 each); buckets of width 10 add 5 of padding.
GNMT_LENGTH = 34
GNMT_VOCABULARY = 32320


def product(m: tuple, n: float, k: float, count: int = 1, groups: tuple = (1, 0)) -> Row:
    """Product [m, k] x [k, n] with `m` = a + b * batch; bf16 in and out."""
    moved = [2 * (x * (n + k)) * (groups[0] or 1) for x in m]
    moved[0] += 2 * n * k * (groups[0] or 1)
    return ["product", count, list(groups), list(m), [n, 0], [k, 0], moved, [0, 0]]


def _weight_gradient(m: tuple, n: float, k: float, count: int = 1) -> Row:
    moved = [2 * x * (n + k) for x in m]
    moved[0] += 2 * n * k
    return ["product", count, [1, 0], [k, 0], [n, 0], list(m), moved, [0, 0]]


def memory(
    per_example: float, count: int = 1, fixed: float = 0.0, kind: str = "elementwise", wide: bool = False
) -> Row:
    """A kernel that only moves bytes: `fixed + per_example * batch`."""
    moved = [fixed, per_example]
    return [kind, count, [0, 0], [0, 0], [0, 0], [0, 0], moved, moved if wide else [0, 0]]


def layer(m: tuple, n: float, k: float, count: int = 1, back: int = 2) -> tuple[list[Row], list[Row]]:
    """(forward, backward) rows of a product with a weight; `back`: 2 both gradients, 1 only the weight's, 0 none."""
    forward = [product(m, n, k, count)]
    gradients = [_weight_gradient(m, n, k, count), product(m, k, n, count)]
    return forward, gradients[:back]


def _network(parts: list[tuple[list[Row], list[Row]]], **sizes: Any) -> dict[str, Any]:
    forward = [row for ahead, _ in parts for row in ahead]
    return {"forward": forward, "train": forward + [row for _, back in parts for row in back], **sizes}


def _recurrent(row: Row) -> Row:
    """Marks a row as one time step of a loop, which cuDNN runs as a single persistent kernel that holds its weights."""
    return ["recurrent", *row[1:]]


def _lstm(steps: int, inputs: int, units: int, count: int = 1) -> list[tuple[list[Row], list[Row]]]:
    """An LSTM layer: input projection before the loop, weight gradient after the loop (pods paper, section 3)."""
    recurrent = [_recurrent(product((0, 1), 4 * units, units, steps * count))]
    recurrent_back = [_recurrent(product((0, 1), units, 4 * units, steps * count))]
    recurrent_back.append(_weight_gradient((0, steps), 4 * units, units, count))
    # A time step reads and writes its gates, cell and output: forward 9, backward 14 values of `units`.
    gates = (
        [_recurrent(memory(2 * 9 * units, steps * count))],
        [_recurrent(memory(2 * 14 * units, steps * count))],
    )
    return [layer((0, steps), 4 * units, inputs, count), (recurrent, recurrent_back), gates]


def gnmt() -> dict[str, Any]:
    """GNMT (docs/sources.md, mlperf 2): a bidirectional LSTM and three others, four with attention, 164.8 M parameters.

    The first layer's two directions count as two sequential layers.
    """
    t, h, v = GNMT_LENGTH, 1024, GNMT_VOCABULARY
    parts = [*_lstm(t, h, h, 2), *_lstm(t, 2 * h, h), *_lstm(t, h, h, 2)]
    parts += [*_lstm(t, 2 * h, h, 4)]
    parts += [
        layer((0, t), h, h),
        layer((0, t), h, h),
    ]  # keys; queries for all time steps at once if none waits for attention
    # Additive attention: each step has a tanh of [source, 1024], a score and a context, kept for the backward pass.
    parts += [([memory(2 * 4 * t * h * t)], [memory(2 * 6 * t * h * t)])]
    parts += [layer((0, t), v, h)]
    parts += [([memory(t * v * 12, wide=True)], [memory(t * v * 6)])]  # softmax in fp32
    parts += [
        (
            [memory(2 * 2 * t * h * 2, kind="gather")],
            [memory(4 * 2 * t * h * 2, fixed=4 * v * h, kind="gather")],
        )
    ]
    parts += [([memory(2 * 4 * t * h, 8)], [memory(2 * 4 * t * h, 8)])]  # dropout and residuals
    return _network(
        parts,
        parameters=164_800_000,
        tensors=50,
        norm_layers=0,
        norm_channels=0,
        source=f"by hand (systems/predict/formulas.py), sentences of {t} tokens",
    )


def _bottlenecks(height: int, width: int) -> list[tuple[list[Row], list[Row]]]:
    """ResNet-50 of Mask R-CNN: stem, first stage and batch norm are frozen and never updated."""
    parts = [_convolution(height // 2, width // 2, 7, 3, 64, back=0)]
    channels = 64
    for stage, (blocks, inner) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        h, w = height // (4 << stage), width // (4 << stage)
        back = 0 if stage == 0 else 2
        for block in range(blocks):
            before = 4 if stage and block == 0 else 1  # the first block's 1x1 sees the larger image
            if block == 0:
                first = 1 if stage == 1 else back  # frozen layers need no gradient
                parts.append(_convolution(h, w, 1, channels, 4 * inner, back=first))
            parts.append(_convolution(h, w, 1, channels, inner, back=back, pixels=before))
            parts.append(_convolution(h, w, 3, inner, inner, back=back))
            parts.append(_convolution(h, w, 1, inner, 4 * inner, back=back))
            channels = 4 * inner
    return parts


def _convolution(
    h: int, w: int, size: int, c: int, n: int, back: int = 2, pixels: int = 1
) -> tuple[list[Row], list[Row]]:
    """A convolution with its scale, ReLU or addition: 4 bytes per output forward, 6 backward."""
    m = (0, h * w * pixels)
    forward, backward = layer(m, n, size * size * c, back=back)
    rows = forward + backward
    for row in rows:
        row[0] = "convolution"
        row[6] = [2 * size * size * c * n, 2 * m[1] * (n + c)]  # an implicit product reads its input once
    after = memory(4.0 * m[1] * n), memory(6.0 * m[1] * n)
    return [*forward, after[0]], [*backward, *([after[1]] if back else [])]


def maskrcnn() -> dict[str, Any]:
    """Mask R-CNN with ResNet-50 and FPN at 832 x 1344 (docs/sources.md, mlperf 2), batch norm frozen.

    It has 44.4 M parameters, 0.2 M of them in frozen layers.
    """
    height, width = 832, 1344
    parts = _bottlenecks(height, width)
    for level, c in ((2, 256), (3, 512), (4, 1024), (5, 2048)):
        h, w = height >> level, width >> level
        parts += [_convolution(h, w, 1, c, 256), _convolution(h, w, 3, 256, 256)]
    for level in range(2, 7):
        h, w = height >> level, width >> level
        parts += [_convolution(h, w, 3, 256, 256), _convolution(h, w, 1, 256, 15)]
    # Box head on 512 regions, mask head on 128; each position pools 16 neighbours.
    heads = [layer((0, 512), 1024, 12544), layer((0, 512), 1024, 1024), layer((0, 512), 455, 1024)]
    heads += [_convolution(14, 14 * 128, 3, 256, 256) for _ in range(4)]
    heads += [_convolution(28, 28 * 128, 1, 256, 256), _convolution(28, 28 * 128, 1, 256, 91)]
    for row in (row for head in heads for rows in head for row in rows):
        row[0] = "second stage"  # not partitioned: section 3 of the paper
    parts += heads
    pooled = 2 * 256 * (512 * 49 + 128 * 196)
    parts.append(([memory(17 * pooled, kind="gather")], [memory(2 * 17 * pooled, kind="gather", wide=True)]))
    # Matching 279,279 anchors to up to 100 boxes, sorting, and suppression (a long chain of small kernels).
    parts.append(([memory(279_279 * 4 * 10, 10, kind="other", wide=True), *LOOPS["maskrcnn"]], []))
    return _network(
        parts,
        parameters=44_200_000,
        tensors=120,
        norm_layers=0,
        norm_channels=0,
        source="by hand (systems/predict/formulas.py), images of 832 x 1344",
    )


def mnist_lstm() -> dict[str, Any]:
    """LEGW's MNIST network: 28 rows through a linear layer, an LSTM of 128 and a linear layer; 136,586 parameters."""
    parts = [layer((0, 28), 128, 28), *_lstm(28, 128, 128), layer((0, 1), 10, 128)]
    return _network(
        parts,
        parameters=136_586,
        tensors=6,
        norm_layers=0,
        norm_channels=0,
        source="by hand (systems/predict/formulas.py)",
    )


def ptb_lstm() -> dict[str, Any]:
    """LEGW's PTB network: two LSTMs of 200 units over 20 words from a vocabulary of 10,000; 4.65 M parameters."""
    parts = [
        *_lstm(20, 200, 200, 2),
        layer((0, 20), 10_000, 200),
        ([memory(20 * 10_000 * 12, wide=True)], []),
    ]
    return _network(
        parts,
        parameters=4_651_600,
        tensors=7,
        norm_layers=0,
        norm_channels=0,
        source="by hand (systems/predict/formulas.py)",
    )


def transformer_decode() -> list[Row]:
    """One step of the Transformer's beam search: the batch counts hypotheses; keys and values of 147 and 97 tokens.

    Each step reads all weights, however few hypotheses there are. It rewrites the cache (docs/sources.md, mlperf 2: a
    one-hot addition) and gathers it when beams change.
    """
    d, layers, v = 1024, 6, 33_708
    rows = [
        product((0, 1), d, d, 8 * layers),
        product((0, 1), 4 * d, d, layers),
        product((0, 1), d, 4 * d, layers),
    ]
    rows += [product((0, 1), v, d), memory(v * 4 * 3, 3, wide=True)]
    return [*rows, memory(2 * 2 * d * (4 * 147 + 97), layers), memory(2 * 4 * d, 12 * layers)]


def gnmt_decode() -> list[Row]:
    """One step of GNMT's beam search: four LSTM layers, attention over the source, the softmax."""
    h, t, v = 1024, GNMT_LENGTH, GNMT_VOCABULARY
    rows = [product((0, 1), 4 * h, 2 * h, 4), product((0, 1), 4 * h, h, 4), product((0, 1), v, h)]
    return [*rows, memory(2 * 4 * t * h, 4), memory(v * 4 * 3, 3, wide=True), memory(2 * 9 * h, 8)]


# An estimate of loops whose iterations the program does not show: suppression of 5 x 2,000 boxes per image processes
# tiles one after the other, and sampling and matching are chains of small operations.
LOOPS: dict[str, list[Row]] = {"maskrcnn": [memory(4e5, 3000, kind="other")]}
NETWORKS: dict[str, Callable[[], dict[str, Any]]] = {
    "gnmt": gnmt,
    "maskrcnn": maskrcnn,
    "mnist_lstm": mnist_lstm,
    "ptb_lstm": ptb_lstm,
}
DECODERS: dict[str, Callable[[], list[Row]]] = {"transformer_big": transformer_decode, "gnmt": gnmt_decode}
