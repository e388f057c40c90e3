"""Replaces a part of a network or task by a faulty one: a test whose target a faulty network reaches tests nothing.

In a test, `inject("mnist", "recurrent", monkeypatch.setattr)`. `python -m tests.faulty BENCHMARK FAULT FLAGS` runs
`python -m BENCHMARK FLAGS` with the fault.
"""

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

# setattr, or monkeypatch's.
Patch = Callable[[Any, str, Any], None]


def inject(benchmark: str, fault: str, patch: Patch = setattr) -> None:
    """Replaces the part that a fault is about, by `patch(owner, name, replacement)`."""
    FAULTS[benchmark, fault](patch)


def _gnmt_attend(patch: Patch) -> None:
    """Replaces the attention's context with zeros."""
    import tensorflow as tf

    from gnmt import layers
    from gnmt.attention import Attention

    whole = Attention.attend

    def attend(self: Attention, *arguments: Any) -> tuple[tf.Tensor, tf.Tensor]:
        context, weights = whole(self, *arguments)
        return tf.zeros_like(context), weights

    patch(Attention, "attend", attend)
    patch(layers, "in_one_loop", lambda *_: False)  # That loop has an attention of its own.


def _gnmt_shift_targets(patch: Patch) -> None:
    """Shows the decoder the token that it must predict."""
    from gnmt import model

    patch(model, "shifted", lambda target: target)


def _mnist_recurrent(patch: Patch) -> None:
    """Shows the LSTM only the image's last row."""
    from mnist.model import RowReader

    whole = RowReader.call
    patch(RowReader, "call", lambda self, images: whole(self, images[:, -1:]))


def _transformer_positions(patch: Patch) -> None:
    """Removes the position signal."""
    from transformer import model

    signal = model.position_signal
    patch(model, "position_signal", lambda *sizes: 0 * signal(*sizes))


def _transformer_attend_source(patch: Patch) -> None:
    """Removes the decoder's attention to the source."""
    from transformer.layers import SourceAttention

    whole = SourceAttention.call

    def call(self: SourceAttention, x: Any, source: Any, allowed: Any, training: bool = False) -> Any:
        return 0 * whole(self, x, source, allowed, training)

    patch(SourceAttention, "call", call)


def _transformer_shift_targets(patch: Patch) -> None:
    """Shows the decoder the token that it must predict."""
    from transformer.model import TokenInput

    whole = TokenInput.__init__
    patch(TokenInput, "__init__", lambda self, layers, embedding, shift=False: whole(self, layers, embedding))


def _ssd_anchor_shift(patch: Patch) -> None:
    """Shifts the anchors by one cell down and to the right when detections are decoded."""
    import numpy as np

    from ssd import task

    whole, anchors = task.Task.detect, task.anchors_of

    def shifted(config: Any) -> np.ndarray:
        counts = [n * s * s for n, s in zip(config.sizes.per_cell, config.feature_sizes)]
        cells = np.repeat([step / 300 for step in config.sizes.steps], counts)
        boxes = anchors(config)
        boxes[:, :2] += cells[:, None]
        return boxes

    def detect(self: task.Task, *arguments: Any) -> Any:
        task.anchors_of = shifted
        try:
            return whole(self, *arguments)
        finally:
            task.anchors_of = anchors

    patch(task.Task, "detect", detect)


def _maskrcnn_anchor_shift(patch: Patch) -> None:
    """Shifts the anchors by one cell when an evaluation decodes proposals."""
    from maskrcnn import detect, model

    def shifted(config: Any, *shape: int) -> Any:
        levels = model.anchors(config, *shape)
        for level, anchors in enumerate(levels, config.min_level):
            anchors[:, :2] += 2**level
        return levels

    patch(detect, "networks", types.SimpleNamespace(anchors=shifted))


def _maskrcnn_train_mask_head(patch: Patch) -> None:
    """Leaves the masks out of the loss."""
    from maskrcnn.task import Task

    whole = Task.loss

    def loss(self: Task, *arguments: Any) -> dict:
        return {name: term for name, term in whole(self, *arguments).items() if name != "mask"}

    patch(Task, "loss", loss)


def _resnet_residual(patch: Patch) -> None:
    """Removes the shortcuts."""
    from resnet.model import _Layers

    patch(_Layers, "residual", lambda self, y, _: self.relu(y))


def _resnet_freeze_batch_norm(patch: Patch) -> None:
    """Batch norm keeps its initial values."""
    from common.layers.image_layers import ImageLayers

    frozen = functools.partialmethod(ImageLayers.sync_batch_norm, trainable=False)
    patch(ImageLayers, "sync_batch_norm", frozen)


FAULTS: dict[tuple[str, str], Callable[[Patch], None]] = {
    ("gnmt", "attend"): _gnmt_attend,
    ("gnmt", "shift_targets"): _gnmt_shift_targets,
    ("mnist", "recurrent"): _mnist_recurrent,
    ("transformer", "positions"): _transformer_positions,
    ("transformer", "attend_source"): _transformer_attend_source,
    ("transformer", "shift_targets"): _transformer_shift_targets,
    ("ssd", "anchor_shift"): _ssd_anchor_shift,
    ("maskrcnn", "anchor_shift"): _maskrcnn_anchor_shift,
    ("maskrcnn", "train_mask_head"): _maskrcnn_train_mask_head,
    ("resnet", "residual"): _resnet_residual,
    ("resnet", "freeze_batch_norm"): _resnet_freeze_batch_norm,
}


if __name__ == "__main__":
    from timetotrain.run import cli

    name, wrong, *flags = sys.argv[1:]
    inject(name, wrong)
    cli.main(name, flags)
