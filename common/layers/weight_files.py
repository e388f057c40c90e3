"""Reads weights from other programs' files into this project's names and layouts: `layer1.0.conv1/kernel`.

| file | written by |
|---|---|
| .pth, .pt | torch.save of a state dict (torchvision's ResNets) |
| .npz | numpy.savez of the same arrays |
| .safetensors | safetensors, of a state dict or of `timetotrain export` |
| .h5 | tf_keras.applications.ResNet50 |
| a folder with saved_model.pb | a SavedModel of `timetotrain export` |

A state dict's convolutions are [out, in, h, w] and its dense layers [out, in]; here they are [h, w, in, out] and
[in, out]. Its batch norm's weight, bias, running_mean and running_var are gamma, beta, moving_mean, moving_variance.
"""

import importlib
import math
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import message

from common.data import npz
from common.errors import UserError
from common.layers import torch_files
from common.layers.torch_files import torch_arrays
from common.untrusted import parsed, read_plain

Arrays = dict[str, np.ndarray]
_DEEPEST = 1000  # Maximum length of a group's path, in characters.
EXTRA = ("assets.extra", "timetotrain.json")  # common/export/formats.py writes it.
# Exceptions that damaged files raise; pickle raises many kinds.
DAMAGE = (*torch_files.DAMAGE, tf.errors.OpError, message.DecodeError)
_SPARE = 64 << 20  # Bytes by which arrays may exceed their files, which Keras and TensorFlow do not compress.
MOST_GRAPH = 1 << 28  # Maximum bytes of a saved_model.pb; every preset's takes less than a hundredth.


def read(path: str | os.PathLike, kind: str = "") -> Arrays:
    """Returns {name: array} of a file; `kind` is its suffix, such as ".h5", if its name has another.

    Raises UserError if the file is missing, damaged or of an unknown kind, or it holds objects other than arrays.
    """
    path = pathlib.Path(path)
    try:
        if (path / "saved_model.pb").is_file():
            return _saved_model(path)
        readers: Mapping[str, Callable[[pathlib.Path], Arrays]] = {
            ".pth": lambda p: of_state_dict(torch_arrays(p)),
            ".pt": lambda p: of_state_dict(torch_arrays(p)),
            ".npz": lambda p: of_state_dict(npz.read(p)),
            ".safetensors": lambda p: of_state_dict(_safetensors(p)),
            ".h5": lambda p: keras_names(hdf_arrays(p)),
        }
        kind = kind or path.suffix
        if kind not in readers:
            fix = f"give {', '.join(readers)} or a SavedModel of `timetotrain export`"
            raise UserError(f"{path}: no kind of weights that is known; {fix}")
        return readers[kind](path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; name a file of weights") from None
    except DAMAGE as error:
        raise UserError(f"{path}: not a whole file of weights ({error}); get a good copy") from error


def of_state_dict(arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Gives torchvision's arrays this project's names and layouts; names with "/" already are this project's."""
    renamed: Arrays = {}
    norms = {name.removesuffix(".running_mean") for name in arrays if name.endswith(".running_mean")}
    for name, array in arrays.items():
        layer, _, part = name.removeprefix("module.").rpartition(".")
        if "/" in name:
            renamed[name] = array
        elif layer in norms:
            ours = {
                "weight": "gamma",
                "bias": "beta",
                "running_mean": "moving_mean",
                "running_var": "moving_variance",
            }
            if part in ours:
                renamed[f"{layer}/{ours[part]}"] = array
        elif part == "weight" and array.ndim >= 2:
            # [out, in, ...] to [..., in, out]
            renamed[f"{layer}/kernel"] = np.transpose(array, [*range(2, array.ndim), 1, 0])
        else:
            renamed[f"{layer}/{part}"] = array
    return renamed


def _safetensors(path: pathlib.Path) -> Arrays:
    try:
        library = importlib.import_module("safetensors.numpy")
    except ImportError as error:
        raise UserError(f"{path}: safetensors is not installed; pip install timetotrain[export]") from error
    try:
        return library.load_file(path)
    except Exception as error:  # The library's own error derives directly from Exception.
        raise ValueError(str(error)) from error


def _saved_model(folder: pathlib.Path) -> Arrays:
    """Reads only the variables' files: it loads no graph, so none can run."""
    about = folder.joinpath(*EXTRA)
    if not about.is_file():
        raise UserError(f"{folder}: a SavedModel without {'/'.join(EXTRA)}; give one of `timetotrain export`")
    reader = checked_reader(folder / "variables" / "variables")
    names = parsed(read_plain(about, MOST_GRAPH))["weights"]
    return {n: reader.get_tensor(f"weights/{i}/.ATTRIBUTES/VARIABLE_VALUE") for i, n in enumerate(names)}


def checked_reader(prefix: pathlib.Path) -> Any:
    """Returns TensorFlow's reader of a checkpoint; its variables have no more bytes than the files that hold them.

    Raises:
      ValueError: the variables have more bytes.
      OSError, tf.errors.OpError: a file is missing or damaged.
    """
    reader = tf.train.load_checkpoint(os.fspath(prefix))
    types, shapes = reader.get_variable_to_dtype_map(), reader.get_variable_to_shape_map()
    needed = sum(math.prod(shape) * (types[name].size or 1) for name, shape in shapes.items())
    data = f"{prefix.name}.data-"
    there = sum(path.stat().st_size for path in prefix.parent.iterdir() if path.name.startswith(data))
    if needed > there + _SPARE:
        raise ValueError(f"its variables have {needed} bytes, their files {there}")
    return reader


def hdf_arrays(path: str | os.PathLike) -> Arrays:
    """Returns {path: array} of an HDF5 file; all arrays must be in the file itself.

    Raises OSError, ValueError if the file is damaged, names other files, or holds more than its size.
    """
    import h5py

    with h5py.File(path, "r") as file:
        values = dict(_leaves(file))
        size = sum(value.nbytes for value in values.values())
        if size > os.path.getsize(path) + _SPARE:
            raise ValueError(f"its arrays have {size} bytes, the file has fewer")
        return {name: np.array(value) for name, value in values.items()}


def _leaves(group: Any) -> Iterator[tuple[str, Any]]:
    import h5py

    for name in group:
        # A link can name another file or form a cycle.
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise ValueError(f"{name[:80]!r} is a link")
        value = group[name]
        if isinstance(value, h5py.Group):
            if len(value.name) > _DEEPEST:
                raise ValueError("its groups are nested too deeply")
            yield from _leaves(value)
        elif value.external or value.is_virtual:
            raise ValueError(f"{name[:80]!r} names another file")
        elif value.dtype.hasobject:
            raise ValueError(f"{name[:80]!r} holds no numbers")
        else:
            yield value.name.strip("/").split(":")[0], value


def keras_names(arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Renames Keras's arrays to torchvision's layer names if they are a ResNet50's.

    Its convolutions have a bias, which the next batch norm subtracts again, so the bias goes into the moving mean.
    """
    renamed: Arrays = {}
    for name, array in arrays.items():
        layer, _, part = name.rpartition("/")
        renamed[f"{torchvision_name(layer.rpartition('/')[2])}/{part}"] = array
    for name in [n for n in renamed if n.endswith("/moving_mean")]:
        layer = name.removesuffix("/moving_mean")
        before = layer.replace("bn", "conv") if "downsample" not in layer else f"{layer[:-1]}0"
        if before != layer and f"{before}/bias" in renamed:
            renamed[name] = renamed[name] - renamed.pop(f"{before}/bias")
    return renamed


def torchvision_name(name: str) -> str:
    """Translates Keras's names, such as conv2_block1_0_bn, to torchvision's, such as layer1.0.downsample.1."""
    top = {"conv1_conv": "conv1", "conv1_bn": "bn1", "predictions": "fc", "probs": "fc"}
    parts = name.split("_")
    if name in top or len(parts) != 4 or not (parts[0].startswith("conv") and parts[1].startswith("block")):
        return top.get(name, name)
    stage, block, number, kind = parts
    layer = f"{kind}{number}" if number != "0" else f"downsample.{int(kind == 'bn')}"
    return f"layer{int(stage.removeprefix('conv')) - 1}.{int(block.removeprefix('block')) - 1}.{layer}"
