"""Tests the network against tf-models-official's ResNet-50, weight for weight, in float64.

The official network has the stride on the 3x3 too, but pads strided convolutions "same". For images of 32k + 1
pixels every strided layer sees an odd size, where "same" pads evenly; so at 65 px the unmodified official network
is the same variant (at even sizes `test_model.py` compares the padding layer by layer). Its batch norm is
tf_keras's, with our momentum and epsilon, and the gammas are drawn at random, since a zero gamma would hide a
branch.
"""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from common.distributed.replicas.single import Single
from common.layers.batch_norm import SyncBatchNorm
from common.layers.precision import precision
from resnet import model
from resnet.config import Config

PIXELS, BATCH, CLASSES = 65, 4, 10


def _theirs(name: str) -> tf_keras.Model:
    """tf-models-official's backbone and classification head."""
    resnet = pytest.importorskip(
        "official.vision.modeling.backbones.resnet", reason="tf-models-official absent"
    )
    from official.vision.modeling import classification_model

    before = tf_keras.mixed_precision.global_policy()
    tf_keras.mixed_precision.set_global_policy(precision(name).layer)
    try:
        backbone = resnet.ResNet(
            50,
            input_specs=tf_keras.layers.InputSpec(shape=[None, PIXELS, PIXELS, 3]),
            norm_momentum=0.9,
            norm_epsilon=1e-5,
        )
        return classification_model.ClassificationModel(
            backbone,
            num_classes=CLASSES,
            input_specs=tf_keras.layers.InputSpec(shape=[None, PIXELS, PIXELS, 3]),
        )
    finally:
        tf_keras.mixed_precision.set_global_policy(before)


def _our_layers(network: tf_keras.Model) -> list[tf_keras.layers.Layer]:
    """Stem, then each block's branch and projection, if any, then the classifier; found by walking the graph
    back from the logits.
    """

    def before(layer):
        layers = layer.inbound_nodes[0].inbound_layers
        return layers if isinstance(layers, list) else [layers]

    def branch(layer):
        """The convolutions and batch norms from `layer` back to the first that is neither."""
        while isinstance(layer, (tf_keras.layers.Conv2D, SyncBatchNorm, tf_keras.layers.ReLU)):
            if isinstance(layer, tf_keras.layers.ReLU) and isinstance(before(layer)[0], tf_keras.layers.Add):
                break
            if not isinstance(layer, tf_keras.layers.ReLU):
                yield layer
            (layer,) = before(layer)

    classifier = network.layers[-1]
    (pool,) = before(classifier)
    (relu,) = before(pool)
    blocks = collections.deque()
    (layer,) = before(relu)
    while isinstance(layer, tf_keras.layers.Add):
        y, shortcut = before(layer)
        main, side = list(branch(y))[::-1], list(branch(shortcut))[::-1]
        identity = isinstance(shortcut, tf_keras.layers.ReLU)
        blocks.appendleft(main + ([] if identity else side))
        start = before(main[0])[0]
        layer = before(start)[0] if isinstance(start, tf_keras.layers.ReLU) else start
    stem = list(branch(before(layer)[0]))[::-1]
    return [*stem, *(layer for block in blocks for layer in block), classifier]


def _their_layers(network: tf_keras.Model) -> list[tf_keras.layers.Layer]:
    backbone = network.backbone
    stem = [layer for layer in backbone.layers if layer.weights and not hasattr(layer, "_conv1")]
    actual = stem
    for block in (layer for layer in backbone.layers if hasattr(layer, "_conv1")):
        actual += [block._conv1, block._norm1, block._conv2, block._norm2, block._conv3, block._norm3]
        if block._use_projection:
            actual += [block._shortcut, block._norm0]
    return [*actual, next(layer for layer in network.layers if isinstance(layer, tf_keras.layers.Dense))]


def _pair(name: str):
    """Both networks with equal weights: [(our variables, their variables)] in one order."""
    config = Config(
        image_size=PIXELS,
        num_classes=CLASSES,
        global_batch_size=BATCH,
        replicas="single",
        implementation="tensorflow2",
    )
    ours, theirs = model.build(config, Single(), precision(name)), _theirs(name)
    rng = np.random.default_rng(0)
    variables = []
    pairs = list(zip(_our_layers(ours), _their_layers(theirs), strict=True))
    for mine, other in pairs:
        assert [v.shape for v in mine.trainable_weights] == [v.shape for v in other.trainable_weights]
        if isinstance(mine, SyncBatchNorm):
            mine.gamma.assign(rng.uniform(0.5, 1.5, mine.gamma.shape))
            mine.beta.assign(rng.normal(0, 0.1, mine.beta.shape))
        variables += zip(mine.trainable_weights, other.trainable_weights)
    for mine, other in variables:
        other.assign(mine)
    assert len(variables) == len(ours.trainable_variables) == len(theirs.trainable_variables) == 161
    norms = [(m, o) for m, o in pairs if isinstance(m, SyncBatchNorm)]
    return ours, theirs, variables, norms


def _batch(dtype):
    rng = np.random.default_rng(1)
    # Numbers that fp32 holds exactly: the official network casts its input to fp32 under every policy.
    images = tf.constant(rng.normal(size=[BATCH, PIXELS, PIXELS, 3]).astype(np.float32), dtype)
    return images, tf.constant(rng.integers(0, CLASSES, BATCH))


def _loss(network, images, labels, variables):
    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            logits = network(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        return logits, loss, tape.gradient(loss, variables)

    return step()


def _distance(a, b) -> float:
    return float(np.linalg.norm(np.subtract(a, b)) / np.linalg.norm(b))


def test_logits_gradients_and_moments_in_float64():
    ours, theirs, variables, norms = _pair("fp64")
    images, labels = _batch(tf.float64)
    mine = _loss(ours, images, labels, [m for m, _ in variables])
    other = _loss(theirs, images, labels, [o for _, o in variables])
    assert _distance(mine[0], other[0]) < 1e-8
    worst = max(_distance(a, b) for a, b in zip(mine[2], other[2], strict=True))
    assert worst < 1e-8
    for layer, stock in norms:
        # tf_keras rounds its 1 - momentum to fp32, which is 1.5e-8 off.
        assert _distance(layer.moving_mean[0], stock.moving_mean) < 1e-7
        assert _distance(layer.moving_variance[0], stock.moving_variance) < 1e-7


def test_first_loss_in_fp32():
    """Gradients of a ResNet in fp32 differ by per cents between correct programs; the first loss does not."""
    ours, theirs, variables, _ = _pair("fp32")
    images, labels = _batch(tf.float32)
    mine = _loss(ours, images, labels, [variables[0][0]])
    other = _loss(theirs, images, labels, [variables[0][1]])
    np.testing.assert_allclose(mine[1], other[1], rtol=1e-4)
