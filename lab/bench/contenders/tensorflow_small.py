"""Ours and Keras `fit` on the small networks of steps.py.

Arguments: contender ("ours" or "keras_fit"), network ("mlp", "mnist" or "ptb"). Ours is the fused loop with the
benchmark's own input, from arrays in memory. Keras gets the same numbers as ready-made floats.
"""

import dataclasses

import numpy as np
import tensorflow as tf
import tf_keras

import mnist.config
import mnist.input
import mnist.presets
import mnist.task
import ptb.config
import ptb.input
import ptb.presets
import ptb.task
from common.distributed import replicas
from common.train.programs import Programs
from lab.bench.contenders.tensorflow_networks import Run, fit
from timetotrain.run import allocator

L = tf_keras.layers
_MNIST = mnist.presets.PRESETS
_CONFIGS = {
    "ptb": ptb.presets.PRESETS["cpu-20"],
    "mnist": _MNIST["cpu-128"],
    "mlp": dataclasses.replace(_MNIST["cpu-mlp"], hidden_layers=4),
}


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Noise in the shape of MNIST: the images' content does not affect the time."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, [60000, 28, 28], np.uint8), rng.integers(0, 10, [60000], np.uint8)


def words() -> np.ndarray:
    """Noise of the Penn Treebank's length."""
    return np.random.default_rng(0).integers(0, 10000, [929589], np.int32)


def ours(network: str) -> Run:
    """The fused loop, with the data in memory as in `python -m mnist`."""
    allocator.keep_freed()
    config = _CONFIGS[network]
    module, data = (ptb, words()) if network == "ptb" else (mnist, digits())
    loop = Programs(module.task.Task(config, None), replicas.make(config))
    loop.compile()
    train = iter(loop.dataset(lambda s: module.input.train_input(config, data, s, loop.batch_size(True), 0)))
    evaluation = loop.synthetic(False)
    return lambda steps: loop.call(train, evaluation, steps, 0).losses[-1]


def keras_fit(network: str) -> Run:
    """Stock layers under `fit`."""
    config = _CONFIGS[network]
    optimizer = tf_keras.optimizers.SGD(
        config.optimizer.base_learning_rate,
        momentum=config.optimizer.momentum,
        # Ours sums the loss over a sequence's steps, Keras takes the mean.
        global_clipnorm=config.optimizer.clip_norm / config.num_steps if network == "ptb" else None,
        weight_decay=config.optimizer.weight_decay or None,
    )
    model = {"mlp": _mlp, "mnist": _lstm, "ptb": _language_model}[network](config)
    model.compile(optimizer, tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = (_language_data if network == "ptb" else _image_data)(config)
    # Pass the dataset: Keras treats an iterator as a Python generator without static shapes.
    return fit(model, data)


def _mlp(config: mnist.config.Config) -> tf_keras.Model:
    hidden = [L.Dense(config.hidden_units, config.activation) for _ in range(config.hidden_layers)]
    return tf_keras.Sequential([tf_keras.Input([28, 28]), L.Flatten(), *hidden, L.Dense(10)])


def _lstm(config: mnist.config.Config) -> tf_keras.Model:
    return tf_keras.Sequential(
        [tf_keras.Input([28, 28]), L.Dense(config.lstm_units), L.LSTM(config.lstm_units), L.Dense(10)]
    )


def _language_model(config: ptb.config.Config) -> tf_keras.Model:
    recurrent = [L.LSTM(config.units, return_sequences=True, stateful=True) for _ in range(config.layers)]
    return tf_keras.Sequential(
        [
            tf_keras.Input([config.num_steps], config.global_batch_size, dtype=tf.int32),
            L.Embedding(config.vocabulary_size, config.units),
            *recurrent,
            L.Dense(config.vocabulary_size),
        ]
    )


def _image_data(config: mnist.config.Config) -> tf.data.Dataset:
    images, labels = digits()
    pixels = images.astype(np.float32) * config.data.pixel_scale + config.data.pixel_offset
    # Slice beforehand: noise needs no shuffling, and no per-image work is left.
    size = config.global_batch_size
    count = len(pixels) // size
    cut = [x[: count * size].reshape(count, size, *x.shape[1:]) for x in (pixels, labels.astype(np.int32))]
    return tf.data.Dataset.from_tensor_slices(tuple(cut)).repeat().prefetch(4)


def _language_data(config: ptb.config.Config) -> tf.data.Dataset:
    streams = words()[: len(words()) // 20 * 20].reshape(20, -1)
    starts = tf.data.Dataset.range(0, streams.shape[1] - 21, 20).repeat()
    rows = tf.constant(streams)
    return starts.map(lambda i: (rows[:, i : i + 20], rows[:, i + 1 : i + 21])).prefetch(4)


CONTENDERS = {"ours": ours, "keras_fit": keras_fit}


def make(name: str, network: str) -> tuple[Run, dict[str, object]]:
    """Returns (function that trains N steps, facts about the contender)."""
    return CONTENDERS[name](network), {"version": tf.__version__}
