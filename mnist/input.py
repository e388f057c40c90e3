"""Makes batches of digits as a function of (seed, step), from arrays in memory.

A batch is {"image": uint8 [b, S, S], "label": int32 [b], "weight": float32 [b]}. An epoch is a permutation of the
training set, keyed by seed and epoch. The endless sequence of epochs is cut into global batches. So every epoch has
every image once for any batch size, and any number of replicas sees the same global batches.
"""

import os

import numpy as np
import tensorflow as tf

from common.data import padding
from common.distributed.replicas.base import Shard
from common.errors import UserError
from mnist import idx
from mnist.config import Config

Arrays = tuple[np.ndarray, np.ndarray]
# Images (several small batches) per tf.data function call, because a call costs a tenth of a perceptron's step.
IMAGES_AT_ONCE = 2048


def check_files(config: Config, data_dir: str | os.PathLike) -> None:
    """Raises UserError if a file that the run reads is missing; opens no file."""
    for split in ["train"] if config.data.held_out else ["train", "test"]:
        for name in idx.FILES[split]:
            idx.find(data_dir, name)


def load(config: Config, data_dir: str | os.PathLike, training: bool) -> Arrays:
    """Loads the (images, labels) that a run trains or evaluates on.

    Raises UserError if files are missing or damaged, the number or size of the images differs from the configuration's,
    or a label is not a class.
    """
    held_out = config.data.held_out
    split = "train" if training or held_out else "test"
    images, labels = idx.load(data_dir, split)
    expected = config.num_train_examples + held_out if split == "train" else config.num_eval_examples
    field = "num_train_examples" if split == "train" else "num_eval_examples"
    path = idx.find(data_dir, idx.FILES[split][0])
    if len(images) != expected:
        fix = f"set --config.{field}={len(images) - held_out}"
        raise UserError(f"{path}: {len(images)} images, {expected} expected; {fix}")
    if images.shape[1:] != (config.image_size,) * 2:
        size = "x".join(map(str, images.shape[1:]))
        raise UserError(
            f"{path}: images of {size}, not {config.image_size}x{config.image_size} (config.image_size)"
        )
    if labels.max() >= config.num_classes:
        at = int(labels.argmax())
        raise UserError(
            f"{idx.find(data_dir, idx.FILES[split][1])}: label {labels[at]} of example {at} is not below "
            f"{config.num_classes} (config.num_classes)"
        )
    if not held_out:
        return images, labels
    part = slice(None, -held_out) if training else slice(-held_out, None)
    return images[part], labels[part]


def train_input(
    config: Config, arrays: Arrays, shard: Shard, batch_size: int, start_step: int
) -> tf.data.Dataset:
    """Yields one shard's training batches without end, starting at step `start_step`; `arrays` are from `load`."""
    count = len(arrays[0])
    per_step = shard.batches_per_step(config.global_batch_size, batch_size)
    images, labels = tf.constant(arrays[0]), tf.constant(arrays[1].astype(np.int32))

    # Number of batches per call of each function below. They span at most two epochs.
    together = min(IMAGES_AT_ONCE // batch_size, per_step * (count // config.global_batch_size - 1)) or 1

    def permutation(epoch: tf.Tensor) -> tf.Tensor:
        key = tf.stack([tf.constant(config.seed % 2**63, tf.int64), epoch])
        return tf.random.experimental.stateless_shuffle(tf.range(count), key, alg="philox")

    def indices(state: tuple, number: tf.Tensor) -> tuple:
        """Returns (the first batch's epoch, its permutation, the next epoch's permutation) and the batches' images."""
        epoch, this, following = state
        numbers = number + tf.range(together, dtype=tf.int64)
        step, part = numbers // per_step, numbers % per_step
        first = step * config.global_batch_size + (shard.index * per_step + part) * batch_size
        new_epoch = first[0] // count
        # If a batch is as large as the training set, a shard's parts of two steps may be two epochs apart.
        this, following = tf.cond(
            new_epoch == epoch,
            lambda: (this, following),
            lambda: (permutation(new_epoch), permutation(new_epoch + 1)),
        )
        places = (first - new_epoch * count)[:, None] + tf.range(batch_size, dtype=tf.int64)
        members = tf.where(
            places < count, tf.gather(this, places % count), tf.gather(following, places % count)
        )
        return (new_epoch, this, following), members

    def batches(indices: tf.Tensor) -> dict[str, tf.Tensor]:
        indices = tf.ensure_shape(indices, [together, batch_size])
        return {
            "image": tf.gather(images, indices),
            "label": tf.gather(labels, indices),
            "weight": tf.ones([together, batch_size]),
        }

    nothing = tf.zeros([count], tf.int32)
    numbers = tf.data.Dataset.range(start_step * per_step, 2**62, together)
    members = numbers.scan((tf.constant(-1, tf.int64), nothing, nothing), indices)
    return members.map(batches).unbatch().prefetch(4)


def eval_input(config: Config, arrays: Arrays, shard: Shard, batch_size: int) -> tf.data.Dataset:
    """Makes one pass over this shard's examples in padded batches; padding has label -1 and weight 0."""
    images = {"image": arrays[0], "label": arrays[1].astype(np.int32)}
    nothing = {"image": np.zeros(arrays[0].shape[1:], np.uint8), "label": -1}
    return padding.shard_of(images, nothing, shard, config.eval_batch_size, batch_size).cache().prefetch(2)


def synthetic(config: Config, batch_size: int) -> tf.data.Dataset:
    """Repeats one batch of seeded noise with both inputs' element_spec."""
    rng = np.random.default_rng(config.seed)
    batch = {
        "image": rng.integers(0, 256, [batch_size, config.image_size, config.image_size], np.uint8),
        "label": np.arange(batch_size, dtype=np.int32) % config.num_classes,
        "weight": np.ones([batch_size], np.float32),
    }
    return tf.data.Dataset.from_tensors(batch).repeat()
