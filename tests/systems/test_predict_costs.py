"""Tests the cached costs: what lab/bench/programs/hlo.py reads, and that the committed files are current."""

import dataclasses
import importlib
import json

import pytest
import tensorflow as tf

from common.distributed.replicas.single import Single
from common.layers.precision import precision
from common.train.describe import forward_macs, parameters
from lab.bench import costs
from lab.bench.programs import hlo
from systems.predict import formulas
from systems.predict import kernel_costs as network

# The two that trace in seconds; every change of a layer that they share shows there.
QUICK = ("alexnet_bn", "resnet50")
NETWORKS = [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.e2e]) for n in costs.NETWORKS]


def read(function, *shapes):
    inputs = [tf.zeros(shape) for shape in shapes]
    compiled = tf.function(function, jit_compile=True)
    return hlo.kernels(compiled.experimental_get_compiler_ir(*inputs)(stage="hlo"))


def test_a_product_and_what_follows_it():
    kernels = read(lambda x, w: tf.nn.relu(x @ w) * 2.0, (64, 256), (256, 512))
    product = next(k for k in kernels if k.kind == "product")
    assert (product.m, product.n, product.k) == (64, 512, 256)
    assert product.flops == 2 * 64 * 512 * 256
    assert product.bytes == 4 * (64 * 256 + 256 * 512 + 64 * 512)
    # ReLU and the factor are one kernel, with one read and one write.
    assert [k.bytes for k in kernels if k.kind == "elementwise"] == [2 * 4 * 64 * 512]


def test_a_concatenation_is_computed_where_it_is_read():
    """XLA fuses it as it does element-wise operations: dropout's planes of bits are not written to memory."""
    joined = read(lambda x: tf.nn.relu(tf.concat([x * 2.0, x + 1.0], axis=0)), (64, 256))
    assert [(k.kind, k.bytes) for k in joined] == [("elementwise", 4 * 3 * 64 * 256)]


@pytest.mark.parametrize(
    "stride, padding, size", [(1, "SAME", 3), (2, "VALID", 3), (2, "SAME", 7), (1, "VALID", 1)]
)
def test_a_convolution_counts_the_inputs_that_exist(stride, padding, size):
    kernels = read(lambda x, w: tf.nn.conv2d(x, w, stride, padding), (4, 30, 30, 8), (size, size, 8, 16))
    ones = tf.nn.conv2d(tf.ones([1, 30, 30, 1]), tf.ones([size, size, 1, 1]), stride, padding)
    assert sum(k.flops for k in kernels) == 2 * 4 * 8 * 16 * float(tf.reduce_sum(ones))


def test_a_gradient_that_nobody_asks_for_is_not_counted():
    def weight_alone(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = tf.reduce_sum(tf.nn.conv2d(x, w, 2, "SAME") ** 2)
        return tape.gradient(y, [x, w])[1]

    kernels = read(weight_alone, (4, 30, 30, 8), (3, 3, 8, 16))
    assert len([k for k in kernels if k.kind == "convolution"]) == 2  # forward, and the weight's


def test_lines_need_programs_that_differ_in_size_alone():
    one, two = hlo.Kernel("product", 4.0, 0.0), hlo.Kernel("pool", 4.0, 0.0)
    with pytest.raises(ValueError, match="different kernels"):
        costs.lines([one], [two], 1, 2)
    assert costs.lines([one, one], [one, one], 1, 2)[0][:2] == ["product", 2]


def test_only_write_writes(tmp_path, monkeypatch, capsys):
    """Without arguments, as in `make bench`, the command compares, and its status says whether files differ."""
    path = tmp_path / "costs.json"
    monkeypatch.setattr(costs, "PATH", path)
    monkeypatch.setattr(costs, "NETWORKS", {"resnet50": costs.NETWORKS["resnet50"]})
    monkeypatch.setattr(costs, "cost", lambda name: {"network": name, "parameters": 2})
    other = {"network": "ssd", "parameters": 3}
    path.write_text(json.dumps({"resnet50": {"network": "resnet50", "parameters": 1}, "ssd": other}))
    before = path.read_text()
    assert costs.main([]) == 1 and path.read_text() == before
    assert "resnet50: parameters" in capsys.readouterr().out
    assert costs.main(["--write"]) == 0 and path.read_text() != before
    assert json.loads(path.read_text())["ssd"] == other
    assert costs.main(["resnet50"]) == 0
    assert "as committed" in capsys.readouterr().out


@pytest.mark.parametrize("network", NETWORKS)
def test_the_committed_costs_are_what_the_program_says(network):
    assert costs.differences(network) == []


# Network -> benchmark, preset, and the number of its examples that equal one of the formula's in length.
BY_HAND = {
    "mnist_lstm": ("mnist", "cpu-128", 1.0),
    "ptb_lstm": ("ptb", "cpu-20", 1.0),
    # GNMT's network is counted at the longest training sentence.
    "gnmt": ("gnmt", "tpu-v3-32", formulas.GNMT_LENGTH / 48),
    "maskrcnn": ("maskrcnn", "tpu-v3-128", 1.0),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_hand_counted_costs_equal_the_full_size_networks(name):
    """Forward multiply-adds of the full-size network: to 1 %; parameters to 0.5 %."""
    assert set(BY_HAND) == set(formulas.NETWORKS)
    benchmark, preset, share = BY_HAND[name]
    module = importlib.import_module(f"{benchmark}.task")
    config = importlib.import_module(f"{benchmark}.presets").PRESETS[preset].single_replica()
    if name == "mnist_lstm":  # The formula is the paper's network, which multiplies by both matrices.
        config = dataclasses.replace(config, folded=False)
    model = module.Task(config, None).build(Single(), precision("fp32"))
    macs = forward_macs(model) * share
    if name == "maskrcnn":
        # Replaces the regions and masks of evaluation by training's: a batch of regions, and the objects among them.
        box = 12544 * 1024 + 1024 * 1024 + 1024 * 455
        mask = 14 * 14 * 4 * 9 * 256 * 256 + 28 * 28 * (256 * 256 + 256 * 91)
        macs += box * (512 - config.rpn_eval_post_nms) + mask * (128 - config.detections)
    by_hand = formulas.NETWORKS[name]()
    rows = network.Kernels.of(by_hand["forward"])
    assert rows.flops_per_example == pytest.approx(2 * macs, rel=0.01)
    assert by_hand["parameters"] == pytest.approx(parameters(model), rel=0.005)
