"""The TensorFlow contenders of steps.py's SSD-300.

Arguments: contender, "train", manifest ({"config": an ssd configuration}). All train the same network with the same
loss on one batch in memory. Ours starts from uint8 pixels and boxes: as in a real run, the step of the fused loop
normalizes pixels, matches the anchors and encodes the boxes. `keras_fit` gets normalized floats and finished targets.
"""

from collections.abc import Callable
from functools import partial

import tensorflow as tf
import tf_keras

from lab.bench.contenders.tensorflow_loops import Made, fit, fused_loop, maker, set_policy
from ssd import input as pipeline
from ssd import loss as multibox
from ssd import model
from ssd.config import Config
from ssd.task import Task


def keras_fit(config: Config) -> Made:
    """Stock layers under `fit`; each call is one epoch of `steps` batches."""
    set_policy(config.precision)
    network = stock_network(config)
    optimizer = tf_keras.optimizers.SGD(config.optimizer.base_learning_rate, config.optimizer.momentum)
    network.compile(optimizer, multibox_loss(config))
    data = _dataset(config)
    return fit(network, data), network


def stock_network(config: Config) -> tf_keras.Model:
    """SSD on the first stages of ResNet-34: images -> [b, A, 4 + classes], anchors in the order y, x, anchor."""
    layers, w = tf_keras.layers, config.width

    def conv(
        x: tf.Tensor, filters: int, size: int, stride: int = 1, pad: int = 0, bias: bool = True
    ) -> tf.Tensor:
        same = stride == 1 and pad == size // 2
        x = layers.ZeroPadding2D(pad)(x) if pad and not same else x
        return layers.Conv2D(filters, size, stride, "same" if same else "valid", use_bias=bias)(x)

    def norm(x: tf.Tensor) -> tf.Tensor:
        return layers.BatchNormalization(
            momentum=config.batch_norm_momentum, epsilon=config.batch_norm_epsilon
        )(x)

    images = tf_keras.Input([config.image_size, config.image_size, 3])
    x = layers.ReLU()(norm(conv(images, w, 7, 2, 3, bias=False)))
    x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    for stage, (blocks, stride) in enumerate(zip(model.BLOCKS, model.STRIDES)):
        for block in range(blocks):
            project = stage > 0 and block == 0
            filters, step = w * 2**stage, stride if project else 1
            y = layers.ReLU()(norm(conv(x, filters, 3, step, 1, bias=False)))
            y = norm(conv(y, filters, 3, 1, 1, bias=False))
            x = norm(conv(x, filters, 1, step, bias=False)) if project else x
            x = layers.ReLU()(layers.Add()([y, x]))
    maps = [x]
    for squeeze, filters, stride, pad in model.extras(config):
        x = layers.ReLU()(conv(x, squeeze, 1))
        x = layers.ReLU()(conv(x, filters, 3, stride, pad))
        maps.append(x)
    values = 4 + config.num_classes
    heads = [conv(x, n * values, 3, 1, 1) for x, n in zip(maps, config.anchors_per_cell)]
    join = layers.Concatenate(axis=1, dtype="float32")
    return tf_keras.Model(images, join([layers.Reshape([-1, values])(head) for head in heads]))


def multibox_loss(config: Config) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns SSD's loss in its usual form, for codes and class [b, A, 5]: it sorts to find hard negatives."""

    def loss(wanted: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
        classes = tf.cast(wanted[..., 4], tf.int32)
        positive = classes > 0
        count = tf.reduce_sum(tf.cast(positive, tf.int32), -1)
        # Keras takes the mean over the four codes.
        huber = 4 * tf_keras.losses.huber(wanted[..., :4], found[..., :4])
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, found[..., 4:])
        order = tf.argsort(tf.where(positive, -1.0, entropy), direction="DESCENDING")
        hard = tf.argsort(order) < config.negatives_per_positive * count[:, None]
        total = tf.where(positive, huber, 0.0) + tf.where(positive | hard, entropy, 0.0)
        return tf.reduce_sum(total, -1) / tf.cast(tf.maximum(count, 1), tf.float32)

    return loss


def _dataset(config: Config) -> tf.data.Dataset:
    """Our noise, normalized and matched once."""
    batch = next(iter(pipeline.synthetic(config, config.global_batch_size)))
    anchors = tf.constant(model.anchors(config), tf.float32)
    wanted = multibox.targets(batch["boxes"], batch["classes"], anchors, config.match_overlap)
    targets = tf.concat([wanted.codes, tf.cast(wanted.classes, tf.float32)[..., None]], -1)
    return tf.data.Dataset.from_tensors((pipeline.normalise(batch["image"]), targets)).repeat()


make = maker(Config, ours=partial(fused_loop, Task), keras_fit=keras_fit)
