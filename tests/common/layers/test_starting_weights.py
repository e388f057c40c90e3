"""Tests init_weights.sh on a server of this machine: download, digest, layout, conversion, forward pass."""

import functools
import hashlib
import http.server
import os
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest

from common.distributed.replicas.single import Single
from common.layers import starting_weights, weight_files
from maskrcnn import starting_weights as maskrcnn
from ssd import starting_weights as ssd
from tests.common.layers.test_weight_files import torch_file
from tsm_kinetics import starting_weights as tsm

ROOT = pathlib.Path(__file__).resolve().parents[3]
NETWORKS = {"resnet34": starting_weights.RESNET34, "resnet50": starting_weights.RESNET50}
CASES = {
    "ssd": ("resnet34", ssd.stages, (1, 2, 1)),
    "maskrcnn": ("resnet50", maskrcnn.stages, (1, 2, 2, 2)),
    "tsm_kinetics": ("resnet50", tsm.stages, (1, 2, 2, 2)),
}


def random(network):
    """Arrays as of a trained network: kernels that keep the size of what passes, norms near 1, a counter."""
    rng, found = np.random.default_rng(0), {}
    for name, shape in NETWORKS[network].shapes().items():
        if name.endswith((".running_var", "bn1.weight", "bn2.weight", "bn3.weight", "downsample.1.weight")):
            found[name] = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        else:
            found[name] = rng.normal(0, np.prod(shape[1:]) ** -0.5, shape).astype(np.float32)
    return found | {"bn1.num_batches_tracked": np.array(3, np.int64)}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """(address, folder, {network: (name, digest)}) of files whose names have the first digits, as torchvision's."""
    folder, names = tmp_path_factory.mktemp("models"), {}
    for network, legacy in (("resnet34", True), ("resnet50", False)):
        torch_file(folder / "new.pth", legacy, random(network))
        digest = hashlib.sha256((folder / "new.pth").read_bytes()).hexdigest()
        names[network] = f"{network}-{digest[:8]}.pth", digest
        (folder / "new.pth").rename(folder / names[network][0])
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}", folder, names
        listening.shutdown()


def init(benchmark, folder, **variables):
    environment = {**os.environ, "PYTHON": sys.executable, "WEIGHTS_DIR": str(folder), **variables}
    command = [str(ROOT / benchmark / "init_weights.sh")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


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
        np.testing.assert_array_equal(file["layer3.1.conv2.weight"], random(network)["layer3.1.conv2.weight"])
    again = init(benchmark, tmp_path / "w", WEIGHTS_URL="http://127.0.0.1:1/" + name)
    assert again.returncode == 0 and "is there" in again.stderr


def test_a_file_of_ones_own_without_a_digest_is_unverified(server, tmp_path):
    _, folder, names = server
    name, digest = names["resnet34"]
    mine = tmp_path / "mine.pth"
    mine.symlink_to(folder / name)
    done = init("ssd", tmp_path / "w", WEIGHTS_FILE=str(mine))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"unverified SHA-256 {digest}: ") and (tmp_path / "w/mine.npz").exists()
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
    assert "layer1.0.conv1.weight has shape [64, 64, 3, 3], not [64, 64, 1, 1]" in refused(
        done, tmp_path / "w"
    )
    done = init("ssd", tmp_path / "w", WEIGHTS_URL=f"{address}/none-01234567.pth")
    assert "cannot download" in refused(done, tmp_path / "w")
    (tmp_path / "cut.pth").write_bytes((folder / names["resnet34"][0]).read_bytes()[:100000])
    done = init("ssd", tmp_path / "w", WEIGHTS_FILE=str(tmp_path / "cut.pth"))
    assert "no whole file of torch.save" in refused(done, tmp_path / "w")
    assert "WEIGHTS_DIR is not set" in init("ssd", "").stderr


def test_values_and_names_that_do_not_belong_are_refused(tmp_path):
    network, arrays = NETWORKS["resnet34"], random("resnet34")
    for changed, message in (
        ({"bn1.bias": np.full(64, np.nan, np.float32)}, "bn1.bias holds values that are no finite numbers"),
        ({"layer5.0.conv1.weight": np.ones(3)}, "layer5.0.conv1.weight is no array of this network"),
    ):
        with pytest.raises(starting_weights.UserError, match=message):
            starting_weights.checked({**arrays, **changed}, network, tmp_path)
    del arrays["fc.bias"]
    with pytest.raises(starting_weights.UserError, match=r"no fc\.bias; give torchvision's ResNet-34"):
        starting_weights.checked(arrays, network, tmp_path)


def forward(arrays, image, strides):
    """The stages of a ResNet in float64, from the arrays alone; convolutions as sums over shifted pictures."""

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
    found = []
    for stage, stride in enumerate(strides, 1):
        for block in range((3, 4, 6, 3)[stage - 1]):
            name, first = f"layer{stage}.{block}", stride if block == 0 else 1
            three = f"{name}.conv3.weight" in arrays
            y = conv(x, f"{name}.conv1", f"{name}.bn1", 1 if three else first)
            y = conv(np.maximum(y, 0), f"{name}.conv2", f"{name}.bn2", first if three else 1)
            y = conv(np.maximum(y, 0), f"{name}.conv3", f"{name}.bn3") if three else y
            if f"{name}.downsample.0.weight" in arrays:
                x = conv(x, f"{name}.downsample.0", f"{name}.downsample.1", first)
            x = np.maximum(x + y, 0)
        found.append(x)
    return found


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
