"""Classifies a video from its frames: the graph cuts an evaluation's clips and crops and averages their scores."""

from collections.abc import Sequence

import tensorflow as tf
import tf_keras

from common.train import serving as contract
from common.train.serving import Reading, Serving
from common.train.task import Task
from tsm_kinetics import input as pipeline
from tsm_kinetics.config import Data


def serving(task: Task, model: tf_keras.Model, labels: Sequence[str]) -> Serving:
    """Maps one video's frames, ordered JPEG files [n], to `scores` [1, classes] and the best classes with names."""
    config, size = task.config, task.config.data.eval_size

    def network(frames: tf.Tensor) -> tf.Tensor:
        return task.scores(model, frames)

    def classify(frames: tf.Tensor) -> dict[str, tf.Tensor]:
        places = frame_places(tf.size(frames), config.frames, config.data)
        shape = tf.image.extract_jpeg_shape(frames[0])
        windows = crops(shape[0], shape[1], config.data)
        cut = pipeline.decoded(tf.gather(frames, tf.reshape(places, [-1])), windows, size, config.data.resize)
        views = tf.reshape(cut, [1, config.views * config.frames, size, size, 3])
        return contract.top(network(views), labels)

    frames = tf.TensorSpec([None], tf.string, "frames")
    core = tf.TensorSpec([1, config.views * config.frames, size, size, 3], tf.uint8, "frames")
    reading = Reading(short_side=config.data.stored_short_side)
    return Serving("video", classify, {"frames": frames}, network, {"frames": core}, reading=reading)


def frame_places(count: tf.Tensor, frames: int, data: Data) -> tf.Tensor:
    """Computes `sampling.eval_frames` in the graph for a video of `count` frames: int64 [clips, frames]."""
    clips = data.eval_clips
    number = tf.cast(count, tf.float64)
    if data.sampling == "dense":
        last = tf.cast(tf.maximum(count - data.window, 0), tf.float64)
        # Matches numpy.linspace, whose last element is exact.
        step = last / max(clips - 1, 1)
        starts = tf.cast(tf.range(clips, dtype=tf.float64) * step, tf.int64)
        if clips > 1:
            starts = tf.concat([starts[:-1], tf.cast(last, tf.int64)[None]], 0)
        steps = tf.range(frames, dtype=tf.int64) * (data.window // frames)
        return (starts[:, None] + steps) % tf.cast(count, tf.int64)
    middles = (tf.range(clips, dtype=tf.float64)[:, None] + 0.5) / clips + tf.range(frames, dtype=tf.float64)
    return tf.cast(tf.minimum(middles * number / frames, number - 1), tf.int64)


def crops(height: tf.Tensor, width: tf.Tensor, data: Data) -> tf.Tensor:
    """Computes `sampling.eval_windows` in the graph: int32 [crops, 4], (top, left, side, side)."""
    short = tf.cast(tf.minimum(height, width), tf.float64)
    side = tf.maximum(1, tf.cast(tf.round(short * data.eval_size / data.eval_short_side), tf.int32))
    room = tf.stack([height - side, width - side])
    corners = (room // 2)[None]
    if data.eval_crops > 1:
        along = tf.one_hot(tf.argmax(tf.stack([height, width])), 2, dtype=tf.int32)
        ends = [room * part // 2 for part in (0, 1, 2)]
        corners = tf.stack([tf.where(along > 0, end, room // 2) for end in ends])
    return tf.concat([corners, tf.fill([tf.shape(corners)[0], 2], side)], 1)
