"""Defines a small, well-conditioned task for tests of the loop and the backends, which trains in seconds."""

import dataclasses
import time
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tf_keras

from common.config.optimizer import Sgd
from common.config.schedule import Constant
from common.config.schema import RunConfig
from common.distributed.replicas.base import Replicas, Shard
from common.layers.batch_norm import SyncBatchNorm
from common.layers.precision import Precision
from common.train import task
from common.train.task import Batch, Outputs, Quality, WeightedSum

FEATURES, CLASSES = 8, 4


@dataclasses.dataclass(frozen=True)
class Config(RunConfig):
    batch_norm_span: int = 0


def config(**changes) -> Config:
    """16 examples a step, 4 steps an epoch, an evaluation each epoch of 37 examples in batches of 8."""
    base = Config(
        benchmark="resnet", model="toy", system="toy", division="open", smoke_run=True, precision="fp32",
        global_batch_size=16, num_train_examples=64, num_eval_examples=37, eval_batch_size=8, train_epochs=5,
        quality_target=0.95, optimizer=Sgd(base_learning_rate=0.1, weight_decay=1e-4),
        schedule=Constant(warmup_epochs=0),
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


class Task(task.Task):
    """Classifies vectors by the nearest of four seeded directions."""

    def __init__(self, config: Config, evaluate_in_worker: bool = False):
        super().__init__(config, None)
        self.evaluate_in_worker = evaluate_in_worker

    def __getstate__(self) -> dict:
        return dict(vars(self))

    def check_input(self) -> None:
        pass

    def check_data(self) -> None:
        pass

    def build(self, replicas: Replicas, precision: Precision) -> tf_keras.Model:
        batch = self.config.micro_batch_size
        x = inputs = replicas.model_input([FEATURES], batch, precision.variable)
        x = tf_keras.layers.Dense(16, use_bias=False, dtype=precision.layer)(x)
        x = SyncBatchNorm(replicas, self.config.batch_norm_span, precision)(x)
        x = tf_keras.layers.Activation("tanh", dtype=precision.layer)(x)
        x = tf_keras.layers.Dense(CLASSES, dtype=precision.full)(x)
        return tf_keras.Model(inputs, x)

    def examples(self, first: int, count: int, offset: int) -> dict[str, np.ndarray]:
        """Examples `first`.. of an endless seeded sequence, from numpy."""
        directions = np.random.default_rng(7).normal(size=[CLASSES, FEATURES])
        rng = np.random.default_rng(1000 + offset)
        x = rng.normal(size=[first + count, FEATURES])[first:]
        return {"x": x, "label": np.argmax(x @ directions.T, -1).astype(np.int32), "weight": np.ones(count)}

    def _dataset(
        self, arrays: Mapping[str, np.ndarray], batch_size: int, shard: Shard | None = None, step: int = 0
    ) -> tf.data.Dataset:
        """Batches in order; process i takes the i-th part of every `step` examples: all see the same sequence."""
        kind = np.float64 if self.config.precision == "fp64" else np.float32
        arrays = {k: v.astype(kind) if v.dtype == np.float64 else v for k, v in arrays.items()}
        if shard and shard.count > 1:
            arrays = {
                k: np.concatenate(np.split(v.reshape(-1, step, *v.shape[1:]), shard.count, 1)[shard.index])
                for k, v in arrays.items()
            }
        return tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size, drop_remainder=True)

    def train_input(self, shard: Shard, batch_size: int, start_step: int) -> tf.data.Dataset:
        examples = self.examples(0, 64, 0)
        whole = self._dataset(examples, batch_size, shard, self.config.global_batch_size).repeat()
        return whole.skip(start_step * shard.batches_per_step(self.config.global_batch_size, batch_size))

    def eval_input(self, shard: Shard, batch_size: int) -> tf.data.Dataset:
        arrays = self.examples(0, 37, 1)
        padding = -37 % self.config.eval_batch_size
        padded = {
            k: np.concatenate([v, np.zeros([padding, *v.shape[1:]], v.dtype)]) for k, v in arrays.items()
        }
        return self._dataset(padded, batch_size, shard, self.config.eval_batch_size)

    def synthetic_input(self, batch_size: int) -> tf.data.Dataset:
        return self._dataset(self.examples(0, batch_size, 2), batch_size).repeat()

    def loss(self, model: tf_keras.Model, batch: Batch) -> Mapping[str, WeightedSum]:
        logits = model(batch["x"], training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], logits)
        return {
            "cross_entropy": WeightedSum(
                tf.reduce_sum(losses * batch["weight"]), tf.reduce_sum(batch["weight"])
            )
        }

    def evaluate(self, model: tf_keras.Model, batch: Batch) -> Outputs:
        logits = model(batch["x"], training=False)
        hits = tf.cast(tf.equal(tf.argmax(logits, -1, tf.int32), batch["label"]), batch["weight"].dtype)
        sums = {"correct": tf.reduce_sum(hits * batch["weight"]), "seen": tf.reduce_sum(batch["weight"])}
        return Outputs(sums=sums, arrays={"label": batch["label"]})

    def quality(self, sums: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray]) -> Quality:
        if int(sums["seen"]) != 37 or len(arrays["label"]) != 40:
            raise ValueError(f"{sums['seen']} examples seen")
        value = float(sums["correct"] / sums["seen"])
        return Quality(value, self.config.meets_target(value))


class Slow(Task):
    """Each training batch takes 20 ms, so that a run can be stopped within a block."""

    seconds = 0.02

    def train_input(self, shard: Shard, batch_size: int, start_step: int) -> tf.data.Dataset:
        def wait(batch: Batch) -> Batch:
            tf.py_function(lambda: time.sleep(self.seconds), [], [])
            return batch

        return super().train_input(shard, batch_size, start_step).map(wait)
