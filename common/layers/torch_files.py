"""Reads the arrays of torch.save files without torch; it runs no code of the file and imports nothing.

A torch.save file is a pickle. This module's unpickler follows its instructions, but makes only tensors, numbers,
strings and containers. It checks sizes against the file's bytes before it makes an array. TensorFlow-free.
"""

import io
import math
import os
import pathlib
import pickle
import struct
import zipfile
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from common.data import npz
from common.errors import UserError
from common.untrusted import NPZ_DAMAGE

Arrays = dict[str, np.ndarray]
# Exceptions that damaged files raise; pickle raises many kinds.
DAMAGE = (
    *(*NPZ_DAMAGE, pickle.UnpicklingError, AttributeError, IndexError),
    *(struct.error, OverflowError, MemoryError, RecursionError),
)
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # torch/serialization.py, files before torch 1.6.
_STORAGES = {
    "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "LongStorage": "<i8", "IntStorage": "<i4",
    "ShortStorage": "<i2", "CharStorage": "i1", "ByteStorage": "u1", "BoolStorage": "?", "BFloat16Storage": "<u2",
}  # fmt: skip


def torch_arrays(path: pathlib.Path) -> Arrays:
    """Returns the arrays of a state dict that torch.save wrote.

    Raises UserError if the file holds other objects than tensors; one of DAMAGE if the file is damaged,
    or its tensors are larger than its bytes.
    """
    size = os.path.getsize(path)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return _tensors(_zipped(archive, size, path), path)
    with open(path, "rb") as file:
        return _tensors(_legacy(_Bounded(file, size), path), path)


def _zipped(archive: zipfile.ZipFile, size: int, path: pathlib.Path) -> Any:
    members = archive.infolist()
    names = [member.filename for member in members]
    if len(set(names)) != len(names):
        raise ValueError("two members have one name")
    unpacked = sum(member.file_size for member in members)
    if unpacked > npz.MOST_RATIO * size + npz.MOST_BYTES:
        raise ValueError(f"its {size} bytes unpack to {unpacked}")
    (name,) = (n for n in names if n.endswith("/data.pkl") or n == "data.pkl")
    root = name.removesuffix("data.pkl")
    storages = _Storages(lambda key: archive.read(f"{root}data/{key}"))
    return _Unpickler(io.BytesIO(archive.read(name)), storages, path, unpacked).load()


class _Bounded:
    """A file that never reads more than what is left, so that a length in a damaged file allocates no memory."""

    def __init__(self, file: BinaryIO, size: int):
        self._file, self.size = file, size
        self.tell, self.seek, self.readline = file.tell, file.seek, file.readline

    def read(self, count: int) -> bytes:
        if count < 0:
            raise ValueError("a negative length")
        return self._file.read(min(count, self.size - self.tell()))


def _legacy(file: _Bounded, path: pathlib.Path) -> Any:
    """Reads the form before torch 1.6: pickles of magic, version, system, object and keys, then the storages."""

    def next_pickle(storages: _Storages | None = None) -> Any:
        return _Unpickler(file, storages or _Storages(None), path, file.size).load()

    if next_pickle() != _MAGIC or next_pickle() != _PROTOCOL:
        raise ValueError("no file of torch.save")
    next_pickle()
    # The storages follow the object that views them, so the object is read twice.
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
    """Resolves a pickle's references to storages. Without `get`, storages are empty; `kinds` records their dtypes."""

    def __init__(self, get: Callable[[str], bytes] | None, kinds: dict[str, str] | None = None):
        self._get, self._kinds = get, kinds
        self._read: dict[str, bytes] = {}

    def __call__(self, reference: tuple) -> tuple[str, np.ndarray]:
        kind, storage, key, *_ = reference
        if kind != "storage" or not isinstance(storage, str) or storage not in _STORAGES:
            raise ValueError("a reference to something else than a storage")
        if not isinstance(key, str):
            raise ValueError("a storage whose key is not text")
        if self._kinds is not None:
            self._kinds[key] = _STORAGES[storage]
        if self._get is not None and key not in self._read:
            self._read[key] = self._get(key)
        return storage, np.frombuffer(self._read.get(key, b""), _STORAGES[storage])


class _Ordered(dict):
    """A state dict without its `_metadata` (its modules' versions); starts empty."""

    def __init__(self) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        pass


# Python's own unpickler, not C's: a number in a damaged pickle could make the C memo fill the memory.
class _Unpickler(pickle._Unpickler):  # type: ignore[name-defined]
    """Unpickles tensors, numbers, strings and containers; it refuses anything else and imports nothing.

    `bytes_` bounds the arrays: all tensors together may have twice as many bytes (several may share a storage).
    """

    dispatch = {
        code: load
        for code, load in pickle._Unpickler.dispatch.items()  # type: ignore[attr-defined]
        # Left out: sets, which hash their elements (torch saves none), and instructions that make other objects.
        if bytes([code])
        not in (
            *(pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET, pickle.INST, pickle.OBJ, pickle.NEWOBJ),
            *(
                pickle.NEWOBJ_EX,
                pickle.EXT1,
                pickle.EXT2,
                pickle.EXT4,
                pickle.NEXT_BUFFER,
                pickle.READONLY_BUFFER,
            ),
        )
    }

    def __init__(self, file: Any, storages: _Storages, path: pathlib.Path, bytes_: int):
        super().__init__(file, encoding="utf-8")
        self._storages, self._path, self._budget = storages, path, 2 * bytes_

    def persistent_load(self, reference: tuple) -> Any:
        return self._storages(reference)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return _Ordered
        if module == "torch" and name in _STORAGES:
            return name
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda tensor, *_: tensor
        fix = "save the state_dict() alone"
        raise UserError(f"{self._path}: holds a {module}.{name}, not only tensors; {fix}")

    def load_setitem(self) -> None:
        _check_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        _check_keys(self.stack[::2])
        super().load_setitems()

    def load_dict(self) -> None:
        _check_keys(self.stack[::2])
        super().load_dict()

    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.DICT[0]] = load_dict

    def _tensor(
        self, storage: tuple[str, np.ndarray], offset: int, size: tuple, stride: tuple, *_: Any
    ) -> np.ndarray:
        kind, data = storage
        if not data.size:
            return np.zeros(size if 0 in size else [0], data.dtype)
        if offset < 0 or min(stride, default=0) < 0 or min(size, default=0) < 0:
            raise ValueError("a tensor has a negative size")
        last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        count = math.prod(size)
        self._budget -= count * data.itemsize
        if last >= data.size or count > data.size or self._budget < 0:
            raise ValueError("a tensor is longer than its storage")
        strides = [s * data.itemsize for s in stride]
        array = np.lib.stride_tricks.as_strided(data[offset:], size, strides, writeable=False).copy()
        return (array.astype("<u4") << 16).view("<f4") if kind == "BFloat16Storage" else array


def _check_keys(keys: list) -> None:
    """Refuses dict keys whose content must be hashed: endlessly nested tuples would end the process."""
    if not all(key is None or isinstance(key, str | int | float | bytes) for key in keys):
        raise ValueError("a dict has a key that is not text or a number")


def _tensors(loaded: Any, path: pathlib.Path) -> Arrays:
    # Training scripts wrap the state dict in another dict.
    for wrapper in ("state_dict", "model", "model_state_dict"):
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = loaded[wrapper]
    pairs = loaded.items() if isinstance(loaded, dict) else ()
    arrays = {n: a for n, a in pairs if isinstance(n, str) and isinstance(a, np.ndarray)}
    if not arrays:
        raise UserError(f"{path}: holds no tensors by name; save the state_dict() alone")
    return arrays
