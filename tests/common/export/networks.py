"""Makes checkpoints of every benchmark's tiny network with random weights, and inputs of each kind, for tests."""

import dataclasses
import io
import types

import numpy as np
import tensorflow as tf
from PIL import Image

from common.config import benchmarks
from common.distributed.replicas.single import Single
from common.layers import batch_norm
from common.layers.precision import precision
from common.train import checkpoint, warm_start
from common.train.state import State

LABELS = ("background", "cat", "dog")
SMALLER = {
    "resnet": {"width": 8},
    "ssd": {"width": 8},
    "maskrcnn": {"backbone_width": 8},
    "transformer": {"layers": 1, "vocabulary_size": 300},
    "gnmt": {"vocabulary_size": 300},
    "ptb": {"vocabulary_size": 40},
}


class Saved:
    """A checkpoint, and the network it was saved from.

    Attributes:
      path: of the checkpoint.
      serving: what the saved network itself offers.
    """

    def __init__(self, benchmark: str, folder, **changes):
        presets = benchmarks.module(benchmark, "presets").PRESETS
        changes = {"precision": "fp32", **SMALLER.get(benchmark, {}), **changes}
        self.config = config = dataclasses.replace(presets["cpu-tiny"], **changes)
        task = benchmarks.module(benchmark, "task").Task(config, None)
        labels = [f"w{i}" for i in range(config.vocabulary_size)] if benchmark == "ptb" else LABELS
        task.labels = lambda: labels
        self.task = task
        self.state = state = State(task, Single(), precision("fp32"))
        rng = np.random.default_rng(0)
        for name, variable in warm_start.variables(state.model).items():
            noise = rng.normal(size=variable.shape) * 0.05
            positive = name.endswith(("gamma", "moving_variance"))
            variable.assign(np.abs(noise) + 0.5 if positive else variable.numpy() + noise)
        warm_start._set_moving(state, {n: v.numpy() for n, v in warm_start.variables(state.model).items()})
        batch_norm.merge_moments(state.model, state.replicas)
        self.path = checkpoint.save(types.SimpleNamespace(state=state, config=config, task=task), folder)
        self.serving = benchmarks.module(benchmark, "serving").serving(task, state.model, labels)

    def answers(self, calls) -> dict[str, np.ndarray]:
        """What the saved network itself says of the inputs of each call."""
        signature = list(self.serving.inputs.values())
        function = tf.function(self.serving.function, input_signature=signature, autograph=False)
        answers = [function(tf.constant(values)) for values in calls]
        return {name: np.concatenate([answer[name].numpy() for answer in answers]) for name in answers[0]}


def inputs(kind: str, count: int, config, seed: int = 1) -> np.ndarray:
    """Random inputs: pictures of several sizes and forms, frames of one video, token sequences or texts."""
    rng = np.random.default_rng(seed)
    if kind in ("classes", "objects", "video"):
        sizes = [(40, 56), (56, 40), (48, 48)] if kind != "video" else [(48, 64)]
        pictures = [
            _picture(rng, *sizes[i % len(sizes)], png=kind != "video" and i % 4 == 3) for i in range(count)
        ]
        return np.array([*pictures, b""], object)[:-1]
    if kind == "translation":
        tokens = np.zeros([count, 12], np.int32)
        for row in tokens:
            length = int(rng.integers(2, 12))
            row[:length] = rng.integers(3, config.vocabulary_size, length)
            row[length - 1] = {"transformer": 1, "gnmt": 2}[config.benchmark]
        return tokens
    words = [
        " ".join(f"w{i}" for i in rng.integers(0, 50, int(rng.integers(1, 60)))).encode()
        for _ in range(count)
    ]
    return np.array([*words, b""], object)[:-1]


def _picture(rng, height: int, width: int, png: bool) -> bytes:
    smooth = rng.integers(0, 256, [6, 8, 3], np.uint8)
    out = io.BytesIO()
    Image.fromarray(smooth).resize((width, height)).save(out, "PNG" if png else "JPEG")
    return out.getvalue()
