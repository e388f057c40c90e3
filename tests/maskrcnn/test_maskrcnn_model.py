"""Tests the network against stock tf_keras layers and numpy in float64, and its sizes, frozen parts and state."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from common.detection.anchors import PYRAMID_ASPECTS
from common.distributed.replicas.single import Single
from common.errors import UserError
from common.layers import gpu_forms
from common.layers.batch_norm import SyncBatchNorm
from common.layers.precision import precision
from common.layers.variable_kinds import kind_of
from common.train.describe import parameters
from common.train.multiply_adds import forward_macs
from maskrcnn import backbone, heads, loss, model
from maskrcnn.config import Config
from tests.common.layers.test_starting_weights import published
from tests.maskrcnn import small

layers = tf_keras.layers


@functools.cache
def network(**changes) -> model.MaskRCNN:
    config = small.config(**changes)
    result = model.build(config, Single(), precision(config.precision))
    small.randomize(result.trainable_variables)
    return result


def layers_by_name(net: tf.Module) -> dict[str, tf_keras.layers.Layer]:
    """The layers that own weights, by name."""
    owns = (layers.Conv2D, layers.Conv2DTranspose, layers.Dense, SyncBatchNorm)
    return {layer.name: layer for layer in net.submodules if isinstance(layer, owns)}


def stock(config: Config, shape: tuple[int, int]) -> tf_keras.Model:
    """ResNet-50, FPN and RPN, layer by layer, with separate padding layers and the levels of the papers' figures."""
    kinds = {"dtype": "float64"}

    def conv(x, filters, size, stride=1, bias=True, name=None):
        x = layers.ZeroPadding2D((size - 1) // 2, **kinds)(x)
        return layers.Conv2D(filters, size, stride, use_bias=bias, name=name, **kinds)(x)

    def conv_norm(x, filters, size, stride, conv_name, norm_name):
        x = conv(x, filters, size, stride, False, conv_name)
        return layers.BatchNormalization(epsilon=1e-5, name=norm_name, **kinds)(x)

    def relu(x):
        return layers.Activation("relu", **kinds)(x)

    images = layers.Input([*shape, 3], dtype="float64")
    w, x = config.backbone_width, images
    x = relu(conv_norm(x, w, 7, 2, "conv1", "bn1"))
    # Of numbers that are not negative
    x = layers.MaxPool2D(3, 2, **kinds)(layers.ZeroPadding2D(1, **kinds)(x))
    outputs = []
    for stage, blocks in enumerate((3, 4, 6, 3), 1):
        for block in range(blocks):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            filters = w * 2 ** (stage - 1)
            y = relu(conv_norm(x, filters, 1, 1, f"{name}.conv1", f"{name}.bn1"))
            y = relu(conv_norm(y, filters, 3, stride, f"{name}.conv2", f"{name}.bn2"))
            y = conv_norm(y, 4 * filters, 1, 1, f"{name}.conv3", f"{name}.bn3")
            if block == 0:
                x = conv_norm(x, 4 * filters, 1, stride, f"{name}.downsample.0", f"{name}.downsample.1")
            x = relu(layers.add([x, y], **kinds))
        outputs.append(x)

    c2, c3, c4, c5 = outputs
    double, n = layers.UpSampling2D(2, **kinds), config.sizes.fpn_channels
    m5 = conv(c5, n, 1, name="fpn_lateral5")
    m4 = layers.add([conv(c4, n, 1, name="fpn_lateral4"), double(m5)], **kinds)
    m3 = layers.add([conv(c3, n, 1, name="fpn_lateral3"), double(m4)], **kinds)
    m2 = layers.add([conv(c2, n, 1, name="fpn_lateral2"), double(m3)], **kinds)
    maps = [conv(m, n, 3, name=f"fpn_output{level}") for level, m in enumerate((m2, m3, m4, m5), 2)]
    p6 = layers.MaxPool2D(1, 2, **kinds)(maps[-1])

    pad = layers.ZeroPadding2D(1, **kinds)
    hidden = layers.Conv2D(config.sizes.fpn_channels, 3, activation="relu", name="rpn", **kinds)
    score, box = layers.Conv2D(3, 1, name="rpn_score", **kinds), layers.Conv2D(12, 1, name="rpn_box", **kinds)
    maps_in = [hidden(pad(x)) for x in [*maps, p6]]

    def by_shape(x, width: int):
        """[b, y, x, 3 * width] to [b, 3 * y * x, width]: all positions of the first shape of anchors, ..."""
        x = layers.Reshape([*x.shape[1:3], 3, width], **kinds)(x)
        return layers.Reshape([-1, width], **kinds)(layers.Permute([3, 1, 2, 4], **kinds)(x))

    flat = layers.Reshape([-1], **kinds)
    logits = [flat(by_shape(score(x), 1)) for x in maps_in]
    return tf_keras.Model(images, (maps, logits, [by_shape(box(x), 4) for x in maps_in]))


def copied(ours: tf.Module, theirs: tf_keras.Model) -> list[tuple[tf.Variable, tf.Variable]]:
    """Copies our layers' weights and moments to the stock layers by name; returns the pairs of weights."""
    mine, pairs, rng = layers_by_name(ours), [], np.random.default_rng(5)
    for layer in theirs.layers:
        if not layer.weights:
            continue
        source = mine[layer.name]
        if isinstance(source, SyncBatchNorm):
            moments = rng.normal(0, 0.1, source.gamma.shape), rng.uniform(0.5, 2, source.gamma.shape)
            source.merged_mean.assign(moments[0])
            source.merged_variance.assign(moments[1])
            layer.set_weights([source.gamma, source.beta, *moments])
            pairs += [(source.gamma, layer.gamma), (source.beta, layer.beta)]
        else:
            layer.set_weights([source.kernel.numpy(), *([source.bias] if layer.use_bias else [])])
            pairs += list(zip(source.weights, layer.weights))
    return pairs


def first_stage(net, images, variables, training):
    """All outputs of the first stage, and the gradients of a loss of all outputs."""

    with tf.GradientTape() as tape:
        tape.watch(variables)
        outputs = tf.nest.flatten(list(net(images, training=training)))
        total = tf.add_n([tf.reduce_mean(tf.sin(x)) for x in outputs])
    return outputs, tape.gradient(total, variables)


def distance(a, b) -> float:
    return float(np.linalg.norm(np.subtract(a, b)) / max(np.linalg.norm(b), 1e-12))


@pytest.mark.parametrize(
    ("shape", "training"), [((128, 64), True), pytest.param((64, 128), False, marks=pytest.mark.e2e)]
)
def test_first_stage_is_that_of_stock_layers_in_float64(shape, training):
    """Both in training from scratch, in the orientation that it was not built for, and with the moving moments."""
    net = network()
    theirs = stock(net.config, shape)
    pairs = copied(net, theirs)
    images = tf.constant(np.random.default_rng(1).normal(size=[2, *shape, 3]))
    mine = first_stage(net.first, images, [v for v, _ in pairs], training)
    other = first_stage(theirs, images, [u for _, u in pairs], training)
    assert [x.shape for x in mine[0]] == [x.shape for x in other[0]] and len(mine[0]) == 4 + 5 + 5
    assert max(distance(a, b) for a, b in zip(mine[0], other[0])) < 1e-8
    assert max(distance(a, b) for a, b in zip(mine[1], other[1])) < 1e-8
    # All trained variables but the second stage's.
    heads = net.box_head.trainable_variables + net.mask_head.trainable_variables
    assert len(pairs) + len(heads) == len(net.trainable_variables)


def conv3(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """A zero-padded 3x3 convolution of [n, h, w, c], summed over the nine positions."""
    height, width = x.shape[1:3]
    padded = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
    parts = itertools.product(range(3), range(3))
    return sum(padded[:, i : i + height, j : j + width] @ kernel[i, j] for i, j in parts)


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def test_box_head_equals_numpy():
    net = network()
    part = {k: [w.numpy() for w in v.weights] for k, v in layers_by_name(net.box_head).items()}
    crops = np.random.default_rng(2).normal(size=[2, 3, 7, 7, 4])
    logits, codes = net.box_head(tf.constant(crops))
    x = crops.reshape(6, -1)
    for name in ("box_fc1", "box_fc2"):
        x = relu(x @ part[name][0] + part[name][1])
    assert logits.shape == (2, 3, 4) and codes.shape == (2, 3, 4, 4)
    for output, name in ((logits, "box_score"), (codes, "box_code")):
        expected = x @ part[name][0] + part[name][1]
        np.testing.assert_allclose(np.reshape(output, expected.shape), expected, rtol=1e-8)


def test_mask_head_equals_numpy():
    net = network()
    part = {k: [w.numpy() for w in v.weights] for k, v in layers_by_name(net.mask_head).items()}
    crops = np.random.default_rng(3).normal(size=[2, 3, 4, 4, 4])
    actual = net.mask_head(tf.constant(crops))
    x = crops.reshape(6, 4, 4, 4)
    for name in ("mask_conv1", "mask_conv2"):
        x = relu(conv3(x, part[name][0]) + part[name][1])
    larger = np.zeros([6, 8, 8, 3])
    kernel, bias = part["mask_larger"]
    for i, j in itertools.product(range(2), range(2)):
        larger[:, i::2, j::2] = relu(x @ kernel[i, j].T + bias)
    kernel, bias = part["mask_score"]
    expected = larger @ kernel[0, 0] + bias
    assert actual.shape == (2, 3, 8, 8, 4)
    np.testing.assert_allclose(np.reshape(actual, expected.shape), expected, rtol=1e-8)


def test_mask_logits_and_gradients_of_one_class_are_those_of_all():
    net, rng = network(), np.random.default_rng(4)
    crops = tf.constant(rng.normal(size=[2, 3, 4, 4, 4]))
    classes, weight = tf.constant([[0, 3, 1], [1, 2, 3]]), tf.constant(rng.normal(size=[2, 3, 8, 8]))
    actual = []
    for one in (lambda: net.mask_head.of_class(crops, classes), lambda: of_all(net, crops, classes)):
        with tf.GradientTape() as tape:
            tape.watch(crops)
            logits = one()
            total = tf.reduce_sum(weight * logits)
        actual.append([logits, *tape.gradient(total, [crops, *net.mask_head.trainable_variables])])
    for mine, other in zip(*actual, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-8, atol=1e-10)


def of_all(net: model.MaskRCNN, crops: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
    return tf.gather(tf.transpose(net.mask_head(crops), [0, 1, 4, 2, 3]), classes, batch_dims=2)


def full_size(**changes) -> Config:
    return dataclasses.replace(Config(), replicas="single", precision="fp32", **changes)


def test_full_size_network_has_the_counted_parameters_and_anchors():
    config = full_size(batch_norm="span")
    net = model.build(config, Single(), precision("fp32"))
    # ResNet-50 has 25,557,032 (docs/sources.md, mlperf 2), of which 2048 * 1000 + 1000 in its classifier.
    resnet = 25557032 - 2049000

    def conv(size, inputs, outputs):
        return size * size * inputs * outputs + outputs

    pyramid = sum(conv(1, c, 256) for c in (256, 512, 1024, 2048)) + 4 * conv(3, 256, 256)
    rpn = conv(3, 256, 256) + conv(1, 256, 3) + conv(1, 256, 12)
    boxes = conv(1, 7 * 7 * 256, 1024) + conv(1, 1024, 1024) + conv(1, 1024, 91) + conv(1, 1024, 4 * 91)
    masks = 4 * conv(3, 256, 256) + conv(2, 256, 256) + conv(1, 256, 91)
    assert parameters(net) == resnet + pyramid + rpn + boxes + masks == 44454513
    # The published count omits the parameters of batch norm, of the stem and of the first stage.
    stem_and_stage = 7 * 7 * 3 * 64 + (64 * 64 + 2 * 64 * 256) + 2 * (2 * 64 * 256) + 3 * 9 * 64 * 64
    norms = [layer for layer in net.submodules if isinstance(layer, SyncBatchNorm)]
    scales = 2 * sum(int(layer.gamma.shape[0]) for layer in norms)
    assert (len(norms), scales) == (53, 53120)
    frozen = [v for name, v in layers_by_name(net).items() if name == "conv1" or name.startswith("layer1.")]
    frozen = [v.kernel for v in frozen if isinstance(v, layers.Conv2D)]
    assert len(frozen) == 11 and sum(np.prod(v.shape) for v in frozen) == stem_and_stage == 222400
    assert forward_macs(net) > 200e9
    for shape in config.shapes:
        assert sum(map(len, model.anchors(config, *shape))) == 279279
        assert [len(x) for x in model.anchors(config, *shape)] == [209664, 52416, 13104, 3276, 819]


def test_outputs_of_the_proposal_network_are_in_the_order_of_the_anchors():
    """Channel 4 a + c of cell (y, x) holds value c of the cell's anchor of aspect a."""
    height, width, stride, scale = 64, 96, 16, 8.0
    cells = np.zeros([1, height // stride, width // stride, 12])
    for y, x, (a, (h, w)) in itertools.product(range(4), range(6), enumerate(PYRAMID_ASPECTS)):
        sides = [scale * stride * h, scale * stride * w]
        cells[0, y, x, 4 * a : 4 * a + 4] = [stride * (y + 0.5), stride * (x + 0.5), *sides]
    expected = model.anchors(full_size(), height, width)[2]
    np.testing.assert_allclose(heads.Flat([4], dtype="float64")(cells)[0], expected, rtol=1e-12)
    np.testing.assert_allclose(
        heads.Flat([], dtype="float64")(cells[..., 1::4])[0], expected[:, 1], rtol=1e-12
    )


def test_frozen_parts_have_no_gradient_at_all():
    net = network(batch_norm="frozen")
    trained = {v.ref() for v in net.trainable_variables}
    frozen = [layers_by_name(net)["conv1"].kernel]
    frozen += [
        v.kernel for k, v in layers_by_name(net).items() if k.startswith("layer1.") and hasattr(v, "kernel")
    ]
    norms = [layer for layer in net.submodules if isinstance(layer, SyncBatchNorm)]
    assert len(frozen) == 11 and len(norms) == 53
    frozen += [v for layer in norms if layer.name == "bn1" or "layer1." in layer.name for v in layer.weights]
    assert not trained & {v.ref() for v in frozen}
    assert not trained & {v.ref() for layer in norms for v in layer.weights}
    assert set(kind_of(net).values()) == {"kernel", "bias"}
    arrays = small.tensors(small.batch(net.config, (64, 128)))
    moments = [v.numpy() for layer in norms for v in (layer.moving_mean, layer.merged_mean)]

    with tf.GradientTape() as tape:
        tape.watch(frozen)
        terms = loss.losses(net, arrays, net.config, tf.constant(0, tf.int64))
        total = tf.add_n([t.total / t.weight for t in terms.values()])
    gradients = tape.gradient(total, [*frozen, *net.trainable_variables])
    assert all(g is None for g in gradients[: len(frozen)])
    gradients = gradients[len(frozen) :]
    assert all(np.isfinite(g).all() for g in gradients) and sum(np.any(g) for g in gradients) > 50
    after = [v.numpy() for layer in norms for v in (layer.moving_mean, layer.merged_mean)]
    tf.nest.map_structure(np.testing.assert_array_equal, after, moments)


def test_a_gpu_s_first_stage_equals_the_plain_one(monkeypatch):
    """With frozen batch norm folded into the convolutions: outputs and gradients in float64."""
    net = network(batch_norm="frozen")
    norms = [layer for layer in net.submodules if isinstance(layer, SyncBatchNorm)]
    assert all(norm.in_convolution for norm in norms)
    small.randomize([v for norm in norms for v in (norm.gamma, norm.beta, norm.merged_mean)])
    images = np.random.default_rng(5).normal(size=[2, 64, 128, 3])

    def step():
        with tf.GradientTape() as tape:
            features = net.features(images, training=True)
            outputs = [*features.maps, *features.logits, *features.codes]
            total = tf.add_n([tf.reduce_sum(tf.sin(x)) for x in outputs])
        gradients = tape.gradient(total, net.trainable_variables, unconnected_gradients="zero")
        return outputs, [gpu_forms.in_weight_layout(net.replicas, g) for g in gradients]

    plain = tf.nest.flatten(step())
    monkeypatch.setattr(Single, "platform", "NVIDIA H200")
    function = tf.function(step, jit_compile=True, autograph=False)
    names = [node.op for node in function.get_concrete_function().graph.as_graph_def().node]
    assert names.count("BiasAdd") > len(norms) and "XlaOptimizationBarrier" in names
    for one, other in zip(tf.nest.flatten(function()), plain, strict=True):
        assert np.linalg.norm(one - other) <= 1e-10 * np.linalg.norm(other) + 1e-12


def test_draws_are_part_of_the_state():
    net = network()
    before = int(net.draws.numpy())
    assert [int(net.next_draw()) for _ in range(3)] == [before, before + 1, before + 2]
    assert any(v is net.draws for v in net.variables)
    net.draws.assign(before)


@pytest.mark.e2e
def test_bf16_computes_convolutions_in_bf16_and_the_rest_in_fp32():
    net = network(precision="bf16")
    features = net.features(tf.zeros([2, 64, 128, 3]), training=False)
    assert {x.dtype for x in features.maps} == {tf.bfloat16}
    assert {x.dtype for x in [*features.logits, *features.codes]} == {tf.float32}
    regions = tf.constant(np.tile([[[0.0, 0, 30, 40], [5, 5, 64, 100]]], [2, 1, 1]), tf.float32)
    outputs = net.heads(features.maps, regions, regions[:, :1], tf.ones([2, 1], tf.int32))
    assert {x.dtype for x in outputs} == {tf.float32}
    assert {v.dtype for v in net.trainable_variables} == {tf.float32}


def test_a_published_backbone_is_read_frozen_or_not(tmp_path):
    arrays = published("resnet50", 2)
    np.savez(tmp_path / "resnet50.npz", **arrays)
    net = network(batch_norm="frozen")
    # 53 convolutions with a batch norm each, whose moments are kept twice: moving and merged.
    assert backbone.load(net, tmp_path / "resnet50.npz", Single()) == 53 * (1 + 2 + 4)
    mine = layers_by_name(net)
    for name in ("conv1", "layer1.0.conv2", "layer4.2.conv3", "layer3.0.downsample.0"):
        np.testing.assert_array_equal(mine[name].kernel, arrays[f"{name}.weight"].transpose(2, 3, 1, 0))
    for name in ("bn1", "layer2.3.bn2", "layer4.0.downsample.1"):
        np.testing.assert_array_equal(mine[name].gamma, arrays[f"{name}.weight"])
        np.testing.assert_array_equal(mine[name].merged_variance, arrays[f"{name}.running_var"])
    np.savez(tmp_path / "wide.npz", **published("resnet50", 4))
    with pytest.raises(UserError, match="is config.backbone_width 64 and the file a ResNet-50"):
        backbone.load(net, tmp_path / "wide.npz", Single())


@pytest.mark.parametrize(("name", "kind"), [("google", "fan_avg"), ("nvidia", "fan_in")])
def test_the_pyramid_and_the_box_head_start_as_in_google_s_code_or_as_in_the_reference(name, kind):
    """PyTorch's kaiming_uniform with a = 1 is uniform in +-sqrt(3 / fan-in); TensorFlow's default takes both fans."""
    net = model.build(small.config(implementation=name, head_units=48), Single(), precision("fp64"))
    count = 0
    for variable in net.trainable_variables:
        shape = variable.shape
        # A 1x1 convolution of the pyramid, and the box head's first layer.
        lateral = shape.rank == 4 and shape[:2] == [1, 1] and shape[3] == net.config.sizes.fpn_channels
        first = shape.rank == 2 and shape[1] == 48 and shape[0] != 48
        if not lateral and not first or np.prod(shape) < 100:
            continue
        fans = np.prod(shape[:-1]), shape[-1]
        bound = np.sqrt(3 / (fans[0] if kind == "fan_in" else np.mean(fans)))
        largest = np.abs(variable.numpy()).max()
        assert 0.9 * bound < largest <= bound, variable.name
        count += 1
    assert count >= 2
