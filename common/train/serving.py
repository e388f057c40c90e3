"""Defines what a trained network does outside a run: preprocessing, network and results in one graph.

BENCHMARK/serving.py has `serving(task, model, labels) -> Serving`; common/export/ saves it and calls it. On the host,
the text of a translation or a continuation becomes tokens, so such a module also has `codec(config, folder) -> Codec`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

TOP = 5  # Number of named classes, best first.


@dataclasses.dataclass(frozen=True)
class Reading:
    """How pictures and videos were read for the records, so that a prediction reads them alike.

    Attributes:
      png: whether a PNG picture stays a PNG; else every picture becomes a JPEG.
      short_side: maximum length of a video's shorter side in pixels.
    """

    png: bool = True
    short_side: int = 256


@dataclasses.dataclass(frozen=True)
class Serving:
    """What a network offers.

    Attributes:
      kind: "classes" or "objects" of images, "video", "translation", "words", "continuation" of a text.
      function: accepts the `inputs` in their order; returns {name: tensor}.
      inputs: {name: spec}; the first axis counts the examples; for a video, it counts the frames.
      features: the network alone, without decoding and naming: a function of tensors with the specs `core`, of fixed
        sizes, that XLA can compile.
      core: {name: spec} of the inputs of `features`.
      resources: tables that `function` uses.
      reading: how files become the `inputs`.
    """

    kind: str
    function: Callable[..., Mapping[str, tf.Tensor]]
    inputs: Mapping[str, tf.TensorSpec]
    features: Callable[..., Any]
    core: Mapping[str, tf.TensorSpec]
    resources: Sequence[Any] = ()
    reading: Reading = Reading()


@dataclasses.dataclass(frozen=True)
class Codec:
    """Turns a text into tokens, int32 [n], and tokens into a text; `length` is a text's maximum number of tokens."""

    encode: Callable[[str], Sequence[int]]
    decode: Callable[[Sequence[int]], str]
    length: int


def class_names(classes: tf.Tensor, labels: Sequence[str], count: int) -> tf.Tensor:
    """Returns the names of classes, int of any shape; the numbers themselves if there are no `labels`."""
    texts = [labels[i] if i < len(labels) and labels[i] else str(i) for i in range(count)]
    return tf.gather(tf.constant(texts), tf.clip_by_value(classes, 0, count - 1))


def top(scores: tf.Tensor, labels: Sequence[str]) -> dict[str, tf.Tensor]:
    """Returns `scores` [b, classes] and, for the TOP best, `top_scores`, `top_classes` int32, `top_names` [b, k]."""
    count = scores.shape[-1]
    best = tf.math.top_k(scores, min(TOP, count))
    return {
        "scores": scores,
        "top_scores": best.values,
        "top_classes": best.indices,
        "top_names": class_names(best.indices, labels, count),
    }


def each(function: Callable[[tf.Tensor], Any], values: tf.Tensor, specs: Any) -> Any:
    """Maps `function` over the first axis of `values`; `specs` are the specs of its results."""
    return tf.map_fn(function, values, fn_output_signature=specs)


IMAGES = tf.TensorSpec([None], tf.string, "images")
