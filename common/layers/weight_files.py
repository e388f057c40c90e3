"""Reads weights of other programs' files into this project's names and layouts: `layer1.0.conv1/kernel`.

| file | written by |
|---|---|
| .pth, .pt | torch.save of a state dict (torchvision's ResNets) |
| .npz | numpy.savez of the same arrays |
| .safetensors | safetensors, of a state dict or of `timetotrain export` |
| .h5 | tf_keras.applications.ResNet50 |
| a folder with saved_model.pb | a SavedModel, Keras's or of `timetotrain export` |

A state dict's convolutions are [out, in, h, w] and its dense layers [out, in]; here they are [h, w, in, out] and
[in, out]. Its batch norm's weight, bias, running_mean and running_var are gamma, beta, moving_mean, moving_variance.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import pathlib
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
import tensorflow as tf

from common.errors import UserError
from common.files import NPZ_DAMAGE

Arrays = dict[str, np.ndarray]
# What damaged files raise: pickles' errors are of many kinds.
DAMAGE = (*NPZ_DAMAGE, pickle.UnpicklingError, AttributeError, IndexError, struct.error, tf.errors.OpError)
EXTRA = ("assets.extra", "timetotrain.json")  # common/export/formats.py writes it.
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # torch/serialization.py, of files before torch 1.6.
_STORAGES = {
    "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "LongStorage": "<i8", "IntStorage": "<i4",
    "ShortStorage": "<i2", "CharStorage": "i1", "ByteStorage": "u1", "BoolStorage": "?", "BFloat16Storage": "<u2",
}  # fmt: skip


def read(path: str | os.PathLike) -> Arrays:
    """Returns {name: array} of a file.

    Raises:
      UserError: the file is missing, damaged or of no known kind, or holds objects that are no arrays.
    """
    path = pathlib.Path(path)
    try:
        if (path / "saved_model.pb").is_file():
            return _saved_model(path)
        readers: Mapping[str, Callable[[pathlib.Path], Arrays]] = {
            ".pth": lambda p: of_state_dict(torch_arrays(p)),
            ".pt": lambda p: of_state_dict(torch_arrays(p)),
            ".npz": lambda p: of_state_dict(_npz(p)),
            ".safetensors": lambda p: of_state_dict(_safetensors(p)),
            ".h5": _keras_file,
        }
        if path.suffix not in readers:
            raise UserError(
                f"{path}: no kind of weights that is known; give {', '.join(readers)} or a SavedModel"
            )
        return readers[path.suffix](path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; name a file of weights") from None
    except DAMAGE as error:
        raise UserError(f"{path}: not a whole file of weights ({error}); get a sound copy") from error


def of_state_dict(arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Returns torchvision's arrays with this project's names and layouts; names with "/" are this project's already."""
    found: Arrays = {}
    norms = {name.removesuffix(".running_mean") for name in arrays if name.endswith(".running_mean")}
    for name, array in arrays.items():
        layer, _, part = name.removeprefix("module.").rpartition(".")
        if "/" in name:
            found[name] = array
        elif layer in norms:
            ours = {
                "weight": "gamma",
                "bias": "beta",
                "running_mean": "moving_mean",
                "running_var": "moving_variance",
            }
            if part in ours:
                found[f"{layer}/{ours[part]}"] = array
        elif part == "weight" and array.ndim >= 2:
            # [out, in, ...] to [..., in, out]
            found[f"{layer}/kernel"] = np.transpose(array, [*range(2, array.ndim), 1, 0])
        else:
            found[f"{layer}/{part}"] = array
    return found


def torch_arrays(path: pathlib.Path) -> Arrays:
    """Returns the arrays of a state dict that torch.save wrote, without torch; no code of the file is run.

    Raises:
      UserError: the file holds other objects than tensors.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            (name,) = (n for n in archive.namelist() if n.endswith("/data.pkl") or n == "data.pkl")
            root = name.removesuffix("data.pkl")
            storages = _Storages(lambda key: archive.read(f"{root}data/{key}"))
            loaded = _Unpickler(io.BytesIO(archive.read(name)), storages, path).load()
            return _tensors(loaded, path)
    with open(path, "rb") as file:
        return _tensors(_legacy(file, path), path)


def _legacy(file: BinaryIO, path: pathlib.Path) -> Any:
    """Reads the form before torch 1.6: pickles of magic, version, system, object and keys, then the storages."""

    def next_pickle(storages: _Storages | None = None) -> Any:
        return _Unpickler(file, storages or _Storages(None), path).load()

    if next_pickle() != _MAGIC or next_pickle() != _PROTOCOL:
        raise ValueError("no file of torch.save")
    next_pickle()
    # The storages come behind the object that views them: it is read twice.
    begin = file.tell()
    sizes: dict[str, str] = {}
    next_pickle(_Storages(None, sizes))
    content = {}
    for key in next_pickle():
        (count,) = struct.unpack("<q", file.read(8))
        content[key] = file.read(count * np.dtype(sizes[key]).itemsize)
    file.seek(begin)
    return next_pickle(_Storages(content.__getitem__))


class _Storages:
    """Resolves a pickle's references to storages; without `get` to empty ones, whose dtypes go into `seen`."""

    def __init__(self, get: Callable[[str], bytes] | None, seen: dict[str, str] | None = None):
        self._get, self._seen = get, seen

    def __call__(self, reference: tuple) -> tuple[str, np.ndarray]:
        kind, storage, key, *_ = reference
        if kind != "storage" or storage not in _STORAGES:
            raise ValueError(f"a {kind} of {storage}")
        if self._seen is not None:
            self._seen[key] = _STORAGES[storage]
        data = b"" if self._get is None else self._get(key)
        return storage, np.frombuffer(data, _STORAGES[storage])


class _Ordered(dict):
    """A state dict, whose `_metadata`, versions of its modules, is left out."""

    def __setstate__(self, state: Any) -> None:
        pass


class _Unpickler(pickle.Unpickler):
    """Unpickles tensors, numbers, texts and containers; anything else is refused, not imported."""

    def __init__(self, file: BinaryIO, storages: _Storages, path: pathlib.Path):
        super().__init__(file, encoding="utf-8")
        self._storages, self._path = storages, path

    def persistent_load(self, reference: tuple) -> Any:
        return self._storages(reference)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return _Ordered
        if module == "torch" and name in _STORAGES:
            return name
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda tensor, *_: tensor
        raise UserError(
            f"{self._path}: holds a {module}.{name}, not only tensors; save the state_dict() alone"
        )


def _tensor(storage: tuple[str, np.ndarray], offset: int, size: tuple, stride: tuple, *_: Any) -> np.ndarray:
    kind, data = storage
    if not data.size:
        return np.zeros(size if 0 in size else [0], data.dtype)
    if offset < 0 or min(stride, default=0) < 0 or min(size, default=0) < 0:
        raise ValueError("a tensor has a negative size")
    last = offset + sum((n - 1) * s for n, s in zip(size, stride))
    if last >= data.size:
        raise ValueError("a tensor is longer than its storage")
    if kind == "BFloat16Storage":
        data = (data.astype("<u4") << 16).view("<f4")
    strides = [s * data.itemsize for s in stride]
    return np.lib.stride_tricks.as_strided(data[offset:], size, strides, writeable=False).copy()


def _tensors(loaded: Any, path: pathlib.Path) -> Arrays:
    # Training scripts wrap the state dict.
    for wrapper in ("state_dict", "model", "model_state_dict"):
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = loaded[wrapper]
    found = {n: a for n, a in loaded.items() if isinstance(a, np.ndarray)} if isinstance(loaded, dict) else {}
    if not found:
        raise UserError(f"{path}: holds no tensors by name; save the state_dict() alone")
    return found


def _npz(path: pathlib.Path) -> Arrays:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _safetensors(path: pathlib.Path) -> Arrays:
    try:
        library = importlib.import_module("safetensors.numpy")
    except ImportError as error:
        raise UserError(f"{path}: safetensors is not installed; pip install timetotrain[export]") from error
    try:
        return library.load_file(path)
    except Exception as error:  # The library's own error derives from Exception alone.
        raise ValueError(str(error)) from error


def _saved_model(folder: pathlib.Path) -> Arrays:
    about = folder.joinpath(*EXTRA)
    reader = tf.train.load_checkpoint(os.fspath(folder / "variables" / "variables"))
    shapes = reader.get_variable_to_shape_map()
    if about.is_file():
        names = json.loads(about.read_text(encoding="utf-8"))["weights"]
        return {n: reader.get_tensor(f"weights/{i}/.ATTRIBUTES/VARIABLE_VALUE") for i, n in enumerate(names)}
    loaded = tf.saved_model.load(os.fspath(folder))
    found = {v.name.split(":")[0]: v.numpy() for v in getattr(loaded, "variables", ())}
    if not found:
        raise ValueError(f"{len(shapes)} variables, none with a name")
    return keras_names(found)


def _keras_file(path: pathlib.Path) -> Arrays:
    import h5py

    with h5py.File(path) as file:
        return keras_names(dict(_leaves(file)))


def _leaves(group: Any) -> Iterator[tuple[str, np.ndarray]]:
    import h5py

    for value in group.values():
        if isinstance(value, h5py.Group):
            yield from _leaves(value)
        else:
            yield value.name.strip("/").split(":")[0], np.array(value)


def keras_names(arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Returns Keras's arrays with the names of torchvision's layers where they are a ResNet50's.

    Its convolutions have a bias, which the batch norm behind subtracts again: it goes into the moving mean.
    """
    found: Arrays = {}
    for name, array in arrays.items():
        layer, _, part = name.rpartition("/")
        found[f"{torchvision_name(layer.rpartition('/')[2])}/{part}"] = array
    for name in [n for n in found if n.endswith("/moving_mean")]:
        layer = name.removesuffix("/moving_mean")
        before = layer.replace("bn", "conv") if "downsample" not in layer else f"{layer[:-1]}0"
        if before != layer and f"{before}/bias" in found:
            found[name] = found[name] - found.pop(f"{before}/bias")
    return found


def torchvision_name(name: str) -> str:
    """Translates Keras's names, such as conv2_block1_0_bn, to torchvision's, layer1.0.downsample.1."""
    top = {"conv1_conv": "conv1", "conv1_bn": "bn1", "predictions": "fc", "probs": "fc"}
    parts = name.split("_")
    if name in top or len(parts) != 4 or not (parts[0].startswith("conv") and parts[1].startswith("block")):
        return top.get(name, name)
    stage, block, number, kind = parts
    layer = f"{kind}{number}" if number != "0" else f"downsample.{int(kind == 'bn')}"
    return f"layer{int(stage.removeprefix('conv')) - 1}.{int(block.removeprefix('block')) - 1}.{layer}"
