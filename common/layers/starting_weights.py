"""Turns a public ResNet into the weights that training starts from; checks digest, layout, forward pass.

`timetotrain weights BENCHMARK` calls `python -m BENCHMARK.starting_weights FILE OUT.npz`, which calls `main` here. FILE
is of any kind that weight_files.py reads. OUT.npz holds its arrays in this project's names and layouts, as
`config.backbone`, `config.initial_weights` and `--init` read them. A failed check prints one line.
"""

import argparse
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras

from common import files
from common.distributed.replicas.base import Replicas
from common.distributed.replicas.single import Single
from common.errors import Parser, UserError, answering
from common.files import whole, write_fix
from common.layers import weight_files

WIDTH, CLASSES = 64, 1000  # As in torchvision's ResNets, trained on ImageNet.
EPSILON = 1e-5  # torch.nn.BatchNorm2d's default.
DIGITS = 8  # torch.hub.load_state_dict_from_url: a file's name has "the first eight or more digits" of its SHA-256.
SIDE, TOLERANCE = 96, 1e-9  # Side of the image that both networks compute in float64; largest difference.
_TORCH = pathlib.Path(__file__).with_name("torch_resnet.py")
# (file, an image [1, SIDE, SIDE, 3] float64, backend) -> the outputs of the benchmark's stages, [1, h, w, c] each.
Stages = Callable[[pathlib.Path, np.ndarray, Replicas], list[np.ndarray]]


class Network(NamedTuple):
    """A torchvision ResNet.

    Attributes:
      name: name for people.
      blocks: number of blocks in each of its four stages.
      bottleneck: whether its blocks are 1x1, 3x3, 1x1 with four times the channels, instead of two 3x3.
    """

    name: str
    blocks: tuple[int, int, int, int]
    bottleneck: bool

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns {name: shape} in this project's names and layouts."""
        by_name: dict[str, tuple[int, ...]] = {}

        def conv(name: str, norm: str, inputs: int, outputs: int, size: int) -> None:
            by_name[f"{name}/kernel"] = (size, size, inputs, outputs)
            for part in ("gamma", "beta", "moving_mean", "moving_variance"):
                by_name[f"{norm}/{part}"] = (outputs,)

        conv("conv1", "bn1", 3, WIDTH, 7)
        inputs = WIDTH
        for stage, blocks in enumerate(self.blocks):
            width = WIDTH * 2**stage
            sizes = [(1, width), (3, width), (1, 4 * width)] if self.bottleneck else [(3, width), (3, width)]
            for block in range(blocks):
                name, within, outputs = f"layer{stage + 1}.{block}", inputs, sizes[-1][1]
                for i, (size, channels) in enumerate(sizes, 1):
                    conv(f"{name}.conv{i}", f"{name}.bn{i}", within, channels, size)
                    within = channels
                if inputs != outputs:
                    conv(f"{name}.downsample.0", f"{name}.downsample.1", inputs, outputs, 1)
                inputs = outputs
        return by_name | {"fc/kernel": (inputs, CLASSES), "fc/bias": (CLASSES,)}


RESNET34 = Network("ResNet-34", (3, 4, 6, 3), False)
RESNET50 = Network("ResNet-50", (3, 4, 6, 3), True)


@answering()
def main(
    network: Network,
    stages: Stages | None,
    strides: Sequence[int],
    module: str,
    argv: Sequence[str] | None = None,
) -> int:
    """Runs `python -m BENCHMARK.starting_weights FILE OUT`; returns the exit status.

    Args:
      network: the ResNet that the file must hold.
      stages: computes the benchmark's own network from OUT; None if it is not comparable.
      strides: strides of that network's stages; there may be fewer than four.
      module: BENCHMARK.starting_weights, for the help.
      argv: arguments; the process's own by default.
    """
    parser = Parser(prog=f"python -m {module}", description=f"Converts a {network.name}.")
    parser.add_argument(
        "file", type=pathlib.Path, help="torchvision's .pth, Keras's .h5, .safetensors or .npz"
    )
    parser.add_argument("out", type=pathlib.Path, help="the .npz file to write")
    parser.add_argument("--sha256", default="", help="SHA-256 of FILE or its first digits; none: unverified")
    parser.add_argument("--torch_python", default="", help="a Python with PyTorch, for the forward pass")
    options = parser.parse_args(argv)
    for line in convert(network, stages, strides, options):
        print(line, flush=True)
    return 0


def convert(
    network: Network, stages: Stages | None, strides: Sequence[int], options: argparse.Namespace
) -> list[str]:
    """Writes `options.out` from `options.file`; returns the findings as lines. OUT is whole or absent.

    Raises:
      UserError: the digest, layout or forward pass differs, the file is damaged, or the folder cannot be written.
    """
    lines = [_digest(options.file, options.sha256)]
    # A file that is being downloaded is called NAME.unverified.
    kind = pathlib.Path(options.file.name.removesuffix(".unverified")).suffix
    arrays = checked(weight_files.read(options.file, kind), network, options.file)
    lines.append(f"layout     {network.name}, {len(arrays)} arrays")
    try:
        with whole(options.out) as partial:
            # A file object, because savez would append .npz to another name.
            with open(partial, "wb") as file:
                np.savez(file, **arrays)
            lines.append(_compared(stages, strides, options, partial))
    except OSError as error:
        raise UserError(f"{options.out}: cannot write: {error.strerror}; {write_fix(error)}") from error
    return [*lines, f"weights    {options.out}"]


def _digest(path: pathlib.Path, expected: str) -> str:
    """Returns a line about the file's SHA-256; raises UserError if it is not the expected one."""
    expected = expected.strip().lower()
    if expected and (not DIGITS <= len(expected) <= 64 or set(expected) - set("0123456789abcdef")):
        raise UserError(f"WEIGHTS_SHA256={expected}: give the SHA-256, or its first {DIGITS} digits or more")
    try:
        digest = files.sha256(path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; name a file of weights") from error
    if not expected:
        return f"unverified SHA-256 {digest}: no digest was published with this name; give yours as WEIGHTS_SHA256"
    if not digest.startswith(expected):
        raise UserError(f"{path}: SHA-256 is {digest}, must begin with {expected}; download it again")
    return f"verified   SHA-256 {digest}, by {len(expected)} digits"


def checked(
    arrays: Mapping[str, np.ndarray], network: Network, path: pathlib.Path
) -> Mapping[str, np.ndarray]:
    """Returns the arrays, which must be those of `network`.

    Raises UserError if an array is missing, has another shape, is not finite, or belongs to another network.
    """
    shapes = network.shapes()
    fix = f"give torchvision's {network.name}"
    for name, shape in shapes.items():
        if name not in arrays:
            raise UserError(f"{path}: no {name}; {fix}")
        if arrays[name].shape != shape:
            raise UserError(f"{path}: {name} has shape {list(arrays[name].shape)}, not {list(shape)}; {fix}")
        if arrays[name].dtype.kind != "f" or not np.isfinite(arrays[name]).all():
            raise UserError(f"{path}: {name} holds values that are no finite numbers; {fix}")
    other = sorted(set(arrays) - set(shapes))
    if other:
        raise UserError(f"{path}: {other[0]} is not an array of this network; {fix}")
    return arrays


def _compared(
    stages: Stages | None, strides: Sequence[int], options: argparse.Namespace, converted: pathlib.Path
) -> str:
    """Computes an image with PyTorch and with the benchmark's network; raises UserError if they differ."""
    if stages is None or not options.file.name.removesuffix(".unverified").endswith((".pth", ".pt")):
        return "forward    not compared: the public network has other strides or padding than this one"
    python = options.torch_python or (sys.executable if importlib.util.find_spec("torch") else "")
    if not python:
        return "forward    not compared: no PyTorch here; TORCH_PYTHON names a Python that has it"
    images = np.random.default_rng(0).normal(size=[1, SIDE, SIDE, 3])
    with tempfile.TemporaryDirectory() as folder:
        images_file, answer = pathlib.Path(folder, "images.npy"), pathlib.Path(folder, "stages.npz")
        np.save(images_file, images)
        command = [python, _TORCH, options.file, images_file, answer, str(EPSILON), *map(str, strides)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise UserError(f"TORCH_PYTHON={python}: {error.strerror}; name a Python with PyTorch") from error
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise UserError(f"TORCH_PYTHON={python}: {last}; name a Python with PyTorch")
        with np.load(answer) as file:
            theirs = [file[f"arr_{i}"].transpose(0, 2, 3, 1) for i in range(len(strides))]
    ours = stages(converted, images, Single())
    worst = 0.0
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=True), 1):
        error = float(np.abs(mine - other).max() / np.abs(other).max())
        if mine.shape != other.shape or not error < TOLERANCE:
            raise UserError(
                f"{options.file}: stage {number} differs from PyTorch's by {error:.2g} of its maximum"
            )
        worst = max(worst, error)
    return f"forward    {len(ours)} stages equal PyTorch's within {worst:.1g} of their maximum"


def block_outputs(network: tf_keras.Model, names: Sequence[str]) -> list[tf.Tensor]:
    """Returns residual blocks' outputs, found by last batch norm: the output of the ReLU after the sum after it."""
    outputs = []
    for name in names:
        layer = network.get_layer(name)
        for _ in range(2):
            layer = layer.outbound_nodes[0].outbound_layer
        outputs.append(layer.output)
    return outputs
