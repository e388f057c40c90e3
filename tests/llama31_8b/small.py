"""A small Llama, its tokens, and a transcription of the network in numpy, written from the paper's formulas."""

import dataclasses
from unittest import mock

import numpy as np
import tensorflow as tf

from common.config.optimizer import AdamW
from common.distributed.replicas.single import Single
from common.layers.precision import precision
from llama31_8b import model
from llama31_8b.config import Config
from llama31_8b.task import Task

# The short length puts wavelengths below, between and above both borders of the scaling.
ROPE = model.ROPE | {"base": 100.0, "length": 32}
SMALL = Config(
    division="open", precision="fp64", global_batch_size=2, eval_batch_size=2, num_train_examples=8,
    num_eval_examples=4, vocab_size=37, sequence_length=12, layers=2, width=32, hidden=24, heads=4, kv_heads=2,
    recompute=False, logit_chunks=1, train_steps=10, steps_per_block=5, optimizer=AdamW(), init_std=0.1,
)  # fmt: skip


def network(config: Config = SMALL, seed: int = 3) -> tuple[Task, model.Llama]:
    """Builds a network with `ROPE` whose weights are all random, the norms' too."""
    task = Task(config, None)
    with mock.patch.dict(model.ROPE, ROPE):
        built = task.build(Single(), precision(config.precision))
    rng = np.random.default_rng(seed)
    for variable in built.trainable_variables:
        around = 1.0 if len(variable.shape) == 1 else 0.0
        variable.assign(around + rng.normal(0, 0.2, variable.shape))
    return task, built


def windows(config: Config = SMALL, seed: int = 5) -> np.ndarray:
    """Random windows, int32 [b, n + 1]."""
    shape = [config.global_batch_size, config.sequence_length + 1]
    return np.random.default_rng(seed).integers(0, config.vocab_size, shape).astype(np.int32)


def loss_and_gradients(task: Task, built: model.Llama, tokens: np.ndarray) -> list[np.ndarray]:
    """The mean cross-entropy of windows and its gradient by every trainable variable."""
    with tf.GradientTape() as tape:
        term = task.loss(built, {"tokens": tf.constant(tokens)})["cross_entropy"]
        loss = term.total / term.weight
    gradients = tape.gradient(loss, built.trainable_variables)
    return [x.numpy() for x in map(tf.convert_to_tensor, [loss, *gradients])]


def turns(size: int) -> np.ndarray:
    """Radians per position of each pair, one after another, as the facts' wavelengths say."""
    frequencies, (base, factor, low, high, length) = [], ROPE.values()
    for i in range(size // 2):
        f = base ** (-2 * i / size)
        wave = 2 * np.pi / f
        if wave > length / low:
            f = f / factor
        elif wave >= length / high:
            s = (length / wave - low) / (high - low)
            f = (1 - s) * f / factor + s * f
        frequencies.append(f)
    return np.array(frequencies)


def transcribed(config: Config, weights: list[np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """The logits [n, vocabulary] of one sequence [n], head by head and position by position."""
    size, half = config.head_size, config.head_size // 2
    weights = [np.asarray(w) for w in weights]
    table, *layers, gamma, head = weights
    angles = turns(size)

    def normed(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return gain * x / np.sqrt(np.mean(x**2, -1, keepdims=True) + model.NORM_EPSILON)

    def turned(x: np.ndarray) -> np.ndarray:
        result = np.empty_like(x)
        for place in range(len(x)):
            for i in range(half):
                c, s = np.cos(place * angles[i]), np.sin(place * angles[i])
                result[place, i] = c * x[place, i] - s * x[place, half + i]
                result[place, half + i] = s * x[place, i] + c * x[place, half + i]
        return result

    x = table[tokens]
    for i in range(config.layers):
        norm_1, qkv, out, norm_2, gate_up, down = layers[6 * i : 6 * i + 6]
        columns = np.split(normed(x, norm_1) @ qkv, config.heads + 2 * config.kv_heads, 1)
        queries, keys = columns[: config.heads], columns[config.heads : config.heads + config.kv_heads]
        values, heads = columns[config.heads + config.kv_heads :], []
        for h, query in enumerate(queries):
            group = h * config.kv_heads // config.heads
            scores = turned(query) @ turned(keys[group]).T / np.sqrt(size)
            mean = np.empty_like(query)
            for place in range(len(x)):
                weight = np.exp(scores[place, : place + 1])
                mean[place] = weight @ values[group][: place + 1] / weight.sum()
            heads.append(mean)
        x = x + np.concatenate(heads, 1) @ out
        gate, up = np.split(normed(x, norm_2) @ gate_up, 2, 1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ down
    return normed(x, gamma) @ head


def changed(**fields: object) -> Config:
    """SMALL with other fields."""
    return dataclasses.replace(SMALL, **fields)
