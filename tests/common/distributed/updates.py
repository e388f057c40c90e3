"""Trains a small task with an embedding, biases and uneven shapes for some steps on any backend."""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
import tf_keras

from common.config.optimizer import (
    Adagrad,
    Adam,
    AdamW,
    Lamb,
    Lars,
    LazyAdam,
    Optimizer,
    OwnRule,
    Sgd,
)
from common.config.run_length import RunLength
from common.config.schema import Communication
from common.distributed import gradient_sum
from common.distributed import replicas as backends
from common.distributed.replicas.base import Replicas
from common.layers.batch_norm import SyncBatchNorm
from common.layers.precision import Precision, precision
from common.optim import optimizers
from common.train.state import State
from common.train.step import make_train_step
from common.train.task import Batch, WeightedSum
from tests.common.train import toy

STEPS, BATCH, ROWS = 20, 24, 13
# A bucket of five weights, and a weight in a bucket of its own.
BUCKET_BYTES = 2500
OPTIMIZERS = {
    "sgd": Sgd(base_learning_rate=0.1, weight_decay=1e-3, nesterov=True),
    "sgd biases": Sgd(base_learning_rate=0.1, weight_decay=1e-3, bias_gradient_factor=2.0),
    "sgd biases' warmup": Sgd(
        base_learning_rate=0.1, bias_gradient_factor=2.0, scaled_momentum=True, one_warmup_delta=True
    ),
    "lars corrected": Lars(eta=0.05, base_learning_rate=0.1, scaled_momentum=True, trust_in_velocity=True),
    "lars": Lars(eta=0.05, base_learning_rate=0.1, weight_decay=1e-3, l2_in_loss=1e-3, epsilon=1e-5),
    "lars scaled": Lars(eta=0.05, base_learning_rate=0.1, weight_decay=1e-3, scaled_momentum=True),
    "adam": Adam(base_learning_rate=0.01, epsilon=1e-8),
    "lazy_adam": LazyAdam(base_learning_rate=0.01, beta_2=0.98, epsilon=1e-9),
    "adam clipped": Adam(
        base_learning_rate=0.01, epsilon=1e-8, clip_norm=0.3, clip_epsilon=0.01, weight_decay=1e-2
    ),
    "adagrad": Adagrad(base_learning_rate=0.05),
    "adamw": AdamW(base_learning_rate=0.01, epsilon=1e-8, weight_decay=1e-2),
    "lamb": Lamb(base_learning_rate=0.02, epsilon=1e-6, weight_decay=1e-2, l2_in_loss=1e-3),
    "own": OwnRule("tests.common.distributed.updates:averaged", base_learning_rate=0.1, weight_decay=1e-3),
}


def averaged(config: Optimizer) -> optimizers.Rule:
    """A rule that this project does not have: the average of the gradients, a decay beside it, and a scalar slot."""

    def update(state):
        m = config.momentum * state.slots["m"] + (1 - config.momentum) * state.gradient
        after = {"m": m, "steps": state.slots["steps"] + 1}
        return state.weight - state.learning_rate * optimizers.with_decay(config, state, m), after

    def init(weight):
        return {"m": tf.zeros_like(weight), "steps": tf.zeros([], weight.dtype)}

    return optimizers.Rule(("m", "steps"), init, update)


class Task(toy.Task):
    """Classifies two integers, which look up rows of a table, and six floats into four classes; sizes are uneven."""

    def build(self, replicas: Replicas, precision: Precision) -> tf_keras.Model:
        policy = precision.layer
        x = inputs = replicas.model_input([toy.FEATURES], self.config.micro_batch_size, precision.variable)
        # The last row is never looked up.
        rows = tf.cast(tf.clip_by_value(4 * x[:, :2] + 6, 0, ROWS - 2), tf.int32)
        looked_up = tf_keras.layers.Embedding(ROWS, 3, dtype=policy)(rows)
        x = tf.concat([tf.reshape(looked_up, [-1, 6]), x[:, 2:]], 1)
        x = tf_keras.layers.Dense(9, use_bias=False, dtype=policy)(x)
        x = SyncBatchNorm(replicas, BATCH, precision)(x)
        x = tf_keras.layers.Activation("tanh", dtype=policy)(x)
        x = tf_keras.layers.Dense(toy.CLASSES, dtype=precision.full)(x)
        return tf_keras.Model(inputs, x)

    def loss(self, model: tf_keras.Model, batch: Batch) -> Mapping[str, WeightedSum]:
        logits = model(batch["x"], training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], logits)
        return {
            "cross_entropy": WeightedSum(
                tf.reduce_sum(losses), tf.cast(BATCH // self.config.num_replicas, losses.dtype)
            )
        }


def config(
    backend: str, number: int, optimizer: str, communication: Communication, **changes: Any
) -> toy.Config:
    return toy.config(
        precision="fp64", replicas=backend, num_replicas=number, global_batch_size=BATCH,
        optimizer=OPTIMIZERS[optimizer], communication=communication, **changes,
    )  # fmt: skip


@functools.cache
def replicas_of(backend: str, number: int) -> Replicas:
    """Makes the replicas once per process: a backend cannot be started twice."""
    return backends.make(toy.config(replicas=backend, num_replicas=number))


@contextlib.contextmanager
def buckets_of(size: int) -> Iterator[None]:
    """Within it, gradients are summed in buckets of `size` bytes; the usual ones hold all weights of a test."""
    with mock.patch.object(gradient_sum, "BUCKET_BYTES", size):
        yield


class Runner:
    """Free-running steps of the task on one backend, with buckets of `bucket_bytes`."""

    def __init__(
        self,
        backend: str,
        number: int,
        optimizer: str,
        communication: Communication = Communication(),  # noqa: B008
        bucket_bytes: int = BUCKET_BYTES,
        **changes: Any,
    ):
        self._bucket_bytes = bucket_bytes
        self.config = config(backend, number, optimizer, communication, **changes)
        self.replicas = replicas_of(backend, number)
        task = self.task = Task(self.config)
        policy = precision(self.config.precision)
        with buckets_of(bucket_bytes):
            self.state = State(task, self.replicas, policy)
        train = make_train_step(task, self.state, RunLength.of(self.config))
        data = task.examples(0, BATCH * STEPS, 0)
        x = tf.constant(data["x"].reshape(STEPS, BATCH, -1))
        label = tf.constant(data["label"].reshape(STEPS, BATCH))
        size = BATCH // number

        def on_one(step: tf.Tensor) -> tf.Tensor:
            start = self.replicas.replica_id() * size
            mine = self.replicas.cut(tf.gather(x, step), [start, 0], [size, toy.FEATURES])
            labels = self.replicas.cut(tf.gather(label, step), [start], [size])
            return train({"x": mine, "label": labels}, step)

        def run(step: tf.Tensor) -> tf.Tensor:
            return self.replicas.sum(self.replicas.run(on_one, (step,)))

        self._run = run if self.replicas.drives_from_host else tf.function(run, autograph=False)

    def steps(self, count: int = STEPS, first: int = 0) -> list[float]:
        """The losses."""
        with buckets_of(self._bucket_bytes):
            return [float(self._run(tf.constant(i, tf.int64))) for i in range(first, first + count)]

    def weights(self) -> list[np.ndarray]:
        """The weights of the first local replica."""
        return [values[0] for values in self.copies()]

    def copies(self) -> list[list[np.ndarray]]:
        """Every weight of every local replica."""
        local = self.replicas.local_results
        return [[x.numpy() for x in local(w)] for w in self.state.model.trainable_variables]

    def slots(self) -> list[np.ndarray]:
        """The optimizer's slots in the shapes of the weights."""
        return [x for *_, x in sorted(self.state.update.each_slot(), key=lambda slot: slot[:2])]

    def slot_elements(self) -> int:
        """The number of slot elements on one replica."""
        slots = [x for slots in self.state.update.slots for x in slots.values()]
        return sum(self.replicas.local_results(x)[0].shape.num_elements() for x in slots)


def free_run(
    backend: str,
    number: int,
    optimizer: str,
    communication: Communication = Communication(),  # noqa: B008
    bucket_bytes: int = BUCKET_BYTES,
) -> tuple[list[float], list[list[np.ndarray]], list[np.ndarray]]:
    """Losses, every weight of every local replica, and slots, after 20 steps."""
    runner = Runner(backend, number, optimizer, communication, bucket_bytes)
    return runner.steps(), runner.copies(), runner.slots()


def sharded(form: str = "sharded", **changes: Any) -> Communication:
    return Communication(weight_update=form, **changes)


def furthest(mine: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float:
    """Largest relative L2 distance between the arrays of two lists."""
    tiny = np.finfo(np.float64).tiny
    return max(np.linalg.norm(a - b) / max(np.linalg.norm(b), tiny) for a, b in zip(mine, other, strict=True))
