"""Defines the task of video classification: cross-entropy on clips, top-1 accuracy on videos."""

import functools
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tf_keras

from common.distributed.replicas.base import Replicas, Shard
from common.layers.precision import Precision
from common.train import task
from common.train.classification import confused, seen_once, top_k_sums
from common.train.task import Batch, Outputs, Quality, WeightedSum
from tsm_kinetics import input as pipeline
from tsm_kinetics import model, pretrained
from tsm_kinetics.config import Config


class Task(task.Task):
    """Classification of Kinetics-400, or of any videos converted with tsm_kinetics.convert."""

    input = pipeline
    # TensorFlow raises these for an exception in a numpy_function.
    input_errors = (
        *task.Task.input_errors,
        tf.errors.UnknownError,
    )

    def __init__(self, config: Config, data_dir: str | None):
        super().__init__(config, data_dir)
        # The check and the batches share one load.
        self._load = functools.lru_cache(maxsize=2)(functools.partial(pipeline.load, config, data_dir))

    def check_data(self) -> None:
        for training in (True, False):
            self._load(training)

    def build(self, replicas: Replicas, precision: Precision) -> tf_keras.Model:
        self._precision = precision
        network = model.build(self.config, replicas, precision)
        if self.config.initial_weights and self.data_dir:
            pretrained.load(network, self.config.initial_weights, self.config.inflation, replicas)
        return network

    def train_input(self, shard: Shard, batch_size: int, start_step: int) -> tf.data.Dataset:
        index = self._load(True)
        return pipeline.train_input(self.config, index, shard, batch_size, start_step)

    def eval_input(self, shard: Shard, batch_size: int) -> tf.data.Dataset:
        index = self._load(False)
        return pipeline.eval_input(self.config, index, shard, batch_size)

    def synthetic_eval_input(self, batch_size: int) -> tf.data.Dataset:
        return pipeline.synthetic(self.config, batch_size, training=False)

    def fitted(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Inflates an image kernel to several frames according to `config.inflation`."""
        images = array.ndim == 4 and len(shape) == 5
        return pretrained.inflated(array, shape, self.config.inflation) if images else array

    def loss(self, model: tf_keras.Model, batch: Batch) -> Mapping[str, WeightedSum]:
        size = self.config.image_size
        clips = tf.ensure_shape(batch["frames"], [None, self.config.frames, size, size, 3])
        logits = model(self._normalized(clips), training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], logits)
        weight = tf.cast(batch["weight"], logits.dtype)
        return {"cross_entropy": WeightedSum(tf.reduce_sum(losses * weight), tf.reduce_sum(weight))}

    def evaluate(self, model: tf_keras.Model, batch: Batch) -> Outputs:
        return Outputs(sums=top_k_sums(self.scores(model, batch["frames"]), batch))

    def quality(self, sums: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray]) -> Quality:
        count = seen_once(sums, self.config.num_eval_examples, "videos")
        top1 = int(sums["correct"]) / count
        details = {"top5": int(sums["correct_top5"]) / count}
        return Quality(top1, self.config.meets_target(top1), details, confused=confused(sums, self.labels))

    def _normalized(self, clips: tf.Tensor) -> tf.Tensor:
        return pipeline.normalize(clips, self._precision.compute, self.config.data.modality)

    def scores(self, model: tf_keras.Model, frames: tf.Tensor) -> tf.Tensor:
        """Averages the softmax over a video's views: [b, views x T, H, W, 3] -> [b, classes].

        "Sample 10 clips per video and calculate the average prediction" (paper 4.1, after Wang et al., who average
        softmax scores).
        """
        videos, classes = frames.shape[0], self.config.num_classes
        shape = tf.shape(frames)
        clips = tf.reshape(frames, tf.concat([[-1, self.config.frames], shape[2:]], 0))
        clips = tf.ensure_shape(clips, [None, self.config.frames, None, None, 3])
        logits = model(self._normalized(clips), training=False)
        scores = tf.reshape(tf.nn.softmax(logits), [videos, -1, classes])
        return tf.reduce_mean(scores, axis=1)
