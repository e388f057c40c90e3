"""Tests init_weights.sh on a server of this machine: download, digest, layout, conversion, forward pass."""

import hashlib
import os
import pathlib
import sys
from unittest import mock

import numpy as np
import pytest
import tf_keras

from common.distributed.replicas.single import Single
from common.layers import starting_weights, weight_files
from maskrcnn import starting_weights as maskrcnn
from ssd import starting_weights as ssd
from tests import datasets
from tests.common.layers.test_weight_files import torch_file
from tsm_kinetics import starting_weights as tsm

ROOT = pathlib.Path(__file__).resolve().parents[3]
NETWORKS = {"resnet34": starting_weights.RESNET34, "resnet50": starting_weights.RESNET50}
CASES = {
    "ssd": ("resnet34", ssd.stages, (1, 2, 1)),
    "maskrcnn": ("resnet50", maskrcnn.stages, (1, 2, 2, 2)),
    "tsm_kinetics": ("resnet50", tsm.stages, (1, 2, 2, 2)),
}


PARTS = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}


def torchvision(arrays):
    """The arrays in torchvision's names and layouts."""
    actual = {}
    for name, array in arrays.items():
        layer, part = name.split("/")
        kernel = (
            np.ascontiguousarray(array.transpose(-1, -2, *range(array.ndim - 2)))
            if part == "kernel"
            else array
        )
        actual[f"{layer}.{PARTS.get(part, part.replace('kernel', 'weight'))}"] = kernel
    return actual


def random(network):
    """Arrays as of a trained network: kernels that keep the size of what passes, norms near 1, a counter."""
    rng, actual = np.random.default_rng(0), {}
    for name, shape in NETWORKS[network].shapes().items():
        if name.endswith(("/moving_variance", "/gamma")):
            actual[name] = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        else:
            actual[name] = rng.normal(0, np.prod(shape[:-1]) ** -0.5, shape).astype(np.float32)
    return torchvision(actual) | {"bn1.num_batches_tracked": np.array(3, np.int64)}


def published(network, width):
    """Arrays as of a trained network of another width."""
    with mock.patch.object(starting_weights, "WIDTH", width):
        return random(network)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """(address, folder, {network: (name, digest)}) of files whose names have the first digits, as torchvision's."""
    folder, names = tmp_path_factory.mktemp("models"), {}
    for network, legacy in (("resnet34", True), ("resnet50", False)):
        torch_file(folder / "new.pth", legacy, random(network))
        digest = hashlib.sha256((folder / "new.pth").read_bytes()).hexdigest()
        names[network] = f"{network}-{digest[:8]}.pth", digest
        (folder / "new.pth").rename(folder / names[network][0])
    with datasets.serving(folder) as address:
        yield address, folder, names


def init(benchmark, folder, **variables):
    return datasets.script("common/layers/init_weights.sh", benchmark, WEIGHTS_DIR=str(folder), **variables)


def refused(done, folder):
    """The one line of a call that ended with 2 and left nothing."""
    lines = done.stderr.splitlines()
    assert done.returncode == 2 and lines[-1].startswith("error: ") and "Traceback" not in done.stderr
    assert not list(folder.glob("*")) if folder.exists() else True
    return lines[-1]


@pytest.mark.parametrize("benchmark", CASES)
def test_downloads_verifies_and_converts(server, tmp_path, benchmark):
    address, _, names = server
    network, _, _ = CASES[benchmark]
    name, digest = names[network]
    done = init(benchmark, tmp_path / "w", WEIGHTS_URL=f"{address}/{name}")
    assert done.returncode == 0, done.stderr
    assert f"verified   SHA-256 {digest}, by 8 digits" in done.stdout
    out = tmp_path / "w" / name.replace(".pth", ".npz")
    assert list((tmp_path / "w").iterdir()) == [out]
    with np.load(out) as file:
        assert set(file.files) == set(NETWORKS[network].shapes())
        kernel = random(network)["layer3.1.conv2.weight"].transpose(2, 3, 1, 0)
        np.testing.assert_array_equal(file["layer3.1.conv2/kernel"], kernel)


def test_stored_weights_are_the_newest_again_unless_a_file_is_named(server, tmp_path):
    address, folder, names = server
    stored = tmp_path / "resnet34-333f7ec4.npz"  # Of the name that is fetched by default.
    stored.write_text("old")
    os.utime(stored, (1, 1))
    done = init("ssd", tmp_path)
    assert done.returncode == 0 and "is there" in done.stderr
    assert stored.stat().st_mtime > 1 and stored.read_text() == "old"
    done = init("ssd", tmp_path, WEIGHTS_URL=f"{address}/none/resnet34-333f7ec4.pth")
    assert done.returncode == 2 and stored.read_text() == "old"
    mine = tmp_path / "mine" / "resnet34-333f7ec4.pth"
    mine.parent.mkdir()
    mine.symlink_to(folder / names["resnet34"][0])
    done = init("ssd", tmp_path, WEIGHTS_FILE=str(mine))
    assert done.returncode == 0 and stored.read_bytes() != b"old", done.stderr


def test_a_download_goes_on_only_with_its_own_address(tmp_path):
    python = tmp_path / "python"  # Prints the file to download: -m common.data.download URL FILE.
    python.write_text('#!/bin/sh\necho "$4"\nexit 1\n')
    python.chmod(0o755)
    urls = ("http://a/net.pth", "http://b/net.pth", "http://a/net.pth")
    first, other, again = (
        init("ssd", tmp_path, WEIGHTS_URL=url, PYTHON=str(python)).stdout.strip() for url in urls
    )
    assert first == again != other and first.endswith("net.pth.unverified")


def test_a_file_of_ones_own_without_a_digest_is_unverified(server, tmp_path):
    _, folder, names = server
    name, digest = names["resnet34"]
    mine = tmp_path / "mine-20250131.pth"  # A date is no digest.
    mine.symlink_to(folder / name)
    done = init("ssd", tmp_path / "w", WEIGHTS_FILE=str(mine))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"unverified SHA-256 {digest}: ")
    assert (tmp_path / "w/mine-20250131.npz").exists()
    assert mine.exists()
    done = init("ssd", tmp_path / "v", WEIGHTS_FILE=str(mine), WEIGHTS_SHA256=digest.upper())
    assert "verified   SHA-256" in done.stdout and "by 64 digits" in done.stdout


def test_a_wrong_digest_is_one_line_and_leaves_nothing(server, tmp_path):
    address, _, names = server
    name, digest = names["resnet34"]
    done = init("ssd", tmp_path / "w", WEIGHTS_URL=f"{address}/{name}", WEIGHTS_SHA256="01234567")
    assert f"SHA-256 is {digest}, must begin with 01234567" in refused(done, tmp_path / "w")
    done = init("ssd", tmp_path / "w", WEIGHTS_URL=f"{address}/{name}", WEIGHTS_SHA256="0123")
    assert "give the SHA-256, or its first 8 digits" in refused(done, tmp_path / "w")


def test_another_network_or_no_file_is_one_line_and_leaves_nothing(server, tmp_path):
    address, folder, names = server
    done = init("maskrcnn", tmp_path / "w", WEIGHTS_URL=f"{address}/{names['resnet34'][0]}")
    assert "layer1.0.conv1/kernel has shape [3, 3, 64, 64], not [1, 1, 64, 64]" in refused(
        done, tmp_path / "w"
    )
    done = init("ssd", tmp_path / "w", WEIGHTS_URL=f"{address}/none-01234567.pth")
    assert "cannot download" in refused(done, tmp_path / "w")
    (tmp_path / "cut.pth").write_bytes((folder / names["resnet34"][0]).read_bytes()[:100000])
    done = init("ssd", tmp_path / "w", WEIGHTS_FILE=str(tmp_path / "cut.pth"))
    assert "not a whole file of weights" in refused(done, tmp_path / "w")
    assert "WEIGHTS_DIR is not set" in init("ssd", "").stderr


def test_values_and_names_that_do_not_belong_are_refused(tmp_path):
    network, arrays = NETWORKS["resnet34"], weight_files.of_state_dict(random("resnet34"))
    for changed, message in (
        ({"bn1/beta": np.full(64, np.nan, np.float32)}, "bn1/beta holds values that are no finite numbers"),
        ({"layer5.0.conv1/kernel": np.ones(3)}, "layer5.0.conv1/kernel is not an array of this network"),
    ):
        with pytest.raises(starting_weights.UserError, match=message):
            starting_weights.checked({**arrays, **changed}, network, tmp_path)
    del arrays["fc/bias"]
    with pytest.raises(starting_weights.UserError, match="no fc/bias; give torchvision's ResNet-34"):
        starting_weights.checked(arrays, network, tmp_path)


def forward(arrays, image, strides, keras=False):
    """The stages of a ResNet in float64, from the arrays alone; convolutions as sums over shifted pictures.

    Keras's network has its strides on the first convolution of a block.
    """

    def conv(x, name, norm, stride=1):
        kernel = arrays[f"{name}.weight"].astype(np.float64)
        size = kernel.shape[-1]
        x = np.pad(x, [(0, 0), (size // 2,) * 2, (size // 2,) * 2, (0, 0)])
        height, width = ((s - size) // stride + 1 for s in x.shape[1:3])
        y = 0
        for i in range(size):
            for j in range(size):
                part = x[:, i : i + stride * height : stride, j : j + stride * width : stride]
                y = y + part[:, :height, :width] @ kernel[:, :, i, j].T
        scale, bias, mean, variance = (
            arrays[f"{norm}.{p}"].astype(np.float64)
            for p in ("weight", "bias", "running_mean", "running_var")
        )
        return (y - mean) / np.sqrt(variance + starting_weights.EPSILON) * scale + bias

    x = np.pad(np.maximum(conv(image, "conv1", "bn1", 2), 0), [(0, 0), (1, 1), (1, 1), (0, 0)])
    half = x.shape[1] // 2 - 1
    x = np.max([x[:, i : i + 2 * half : 2, j : j + 2 * half : 2] for i in range(3) for j in range(3)], 0)
    actual = []
    for stage, stride in enumerate(strides, 1):
        for block in range((3, 4, 6, 3)[stage - 1]):
            name, first = f"layer{stage}.{block}", stride if block == 0 else 1
            three = f"{name}.conv3.weight" in arrays
            y = conv(x, f"{name}.conv1", f"{name}.bn1", 1 if three and not keras else first)
            y = conv(np.maximum(y, 0), f"{name}.conv2", f"{name}.bn2", first if three and not keras else 1)
            y = conv(np.maximum(y, 0), f"{name}.conv3", f"{name}.bn3") if three else y
            if f"{name}.downsample.0.weight" in arrays:
                x = conv(x, f"{name}.downsample.0", f"{name}.downsample.1", first)
            x = np.maximum(x + y, 0)
        actual.append(x)
    return actual


@pytest.mark.parametrize("benchmark", CASES)
def test_each_network_computes_what_the_file_says(server, tmp_path, benchmark):
    network, stages, strides = CASES[benchmark]
    _, folder, names = server
    out = tmp_path / "out.npz"
    np.savez(out, **weight_files.torch_arrays(folder / names[network][0]))
    image = np.random.default_rng(1).normal(size=[1, starting_weights.SIDE, starting_weights.SIDE, 3])
    for mine, other in zip(
        stages(out, image, Single()), forward(random(network), image, strides), strict=True
    ):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-9 * np.abs(other).max())


def test_keras_s_file_has_the_layers_of_torchvision(tmp_path):
    """Keras's own ResNet-50 with random weights computes, layer by layer, what the arrays read from its file say."""
    theirs = tf_keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3))
    rng = np.random.default_rng(2)
    for variable in theirs.weights:
        positive = variable.name.endswith(("gamma:0", "moving_variance:0"))
        scale = np.prod(variable.shape[:-1]) ** -0.5
        variable.assign(
            rng.uniform(0.5, 1.5, variable.shape) if positive else scale * rng.normal(size=variable.shape)
        )
    theirs.save_weights(tmp_path / "resnet50.h5")
    done = init("resnet", tmp_path / "w", WEIGHTS_FILE=str(tmp_path / "resnet50.h5"))
    assert done.returncode == 0 and "forward    not compared" in done.stdout, done.stderr
    read = weight_files.read(tmp_path / "w/resnet50.npz")
    assert {name: value.shape for name, value in read.items()} == NETWORKS["resnet50"].shapes()
    image = rng.normal(size=[1, 64, 64, 3])
    ends = [f"conv{stage + 1}_block{blocks}_out" for stage, blocks in enumerate((3, 4, 6, 3), 1)]
    stages = tf_keras.Model(theirs.input, [theirs.get_layer(name).output for name in ends])(image)
    for mine, other in zip(forward(torchvision(read), image, (1, 2, 2, 2), keras=True), stages, strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-5 * np.abs(other).max())


@pytest.mark.parametrize("benchmark", CASES)
def test_the_forward_pass_is_held_against_pytorch(server, tmp_path, benchmark):
    """TORCH_PYTHON names an interpreter with PyTorch, which is none of the project's dependencies."""
    python = os.environ.get("TORCH_PYTHON")
    if not python:
        pytest.skip("set TORCH_PYTHON to a Python with PyTorch")
    address, _, names = server
    network, _, strides = CASES[benchmark]
    done = init(benchmark, tmp_path / "w", WEIGHTS_URL=f"{address}/{names[network][0]}", TORCH_PYTHON=python)
    assert done.returncode == 0, done.stderr
    assert f"forward    {len(strides)} stages equal PyTorch's within " in done.stdout


def test_a_python_without_pytorch_is_one_line(server, tmp_path):
    address, _, names = server
    name = names["resnet34"][0]
    done = init("ssd", tmp_path / "w", WEIGHTS_URL=f"{address}/{name}", TORCH_PYTHON=sys.executable)
    line = refused(done, tmp_path / "w")
    assert "No module named 'torch'" in line and "name a Python with PyTorch" in line
