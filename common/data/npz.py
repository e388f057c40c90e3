"""Reads untrusted .npz files: checks sizes before it unpacks anything. TensorFlow-free.

`numpy.load` trusts the file's headers. It allocates an array of 10^12 numbers before it notices that the bytes are
missing, unpacks a member of 100 GB, and accepts two members with the same name. This module rejects such files. It
never reads pickles.
"""

import contextlib
import io
import math
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

import numpy as np

# A file may unpack to at most MOST_RATIO times its own size plus MOST_BYTES. Weights do not compress to half their
# size. A file of zeros compresses a thousandfold; a small one is allowed.
MOST_RATIO, MOST_BYTES = 20, 64 << 20
_PART = 1 << 24  # Bytes that `Archive.check` reads at once.
_HEADER = 1 << 16  # Maximum length of a member's header in bytes; numpy writes fewer than 200.


class Archive:
    """An open .npz file, read-only: `files` lists its arrays' names, `archive[name]` reads one.

    An array with an invalid name, size or form raises ValueError; a damaged one raises zipfile's exceptions.
    """

    def __init__(self, file: zipfile.ZipFile, size: int):
        members = file.infolist()
        names = [member.filename for member in members]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two members are called {twice[:80]!r}")
        other = [name for name in names if not name.endswith(".npy")]
        if other:
            raise ValueError(f"{other[0][:80]!r} is not an array")
        unpacked = sum(member.file_size for member in members)
        if unpacked > MOST_RATIO * size + MOST_BYTES:
            raise ValueError(f"its {size} bytes unpack to {unpacked}")
        self._file = file
        self._members = {name.removesuffix(".npy"): member for name, member in zip(names, members)}

    @property
    def files(self) -> list[str]:
        """The arrays' names."""
        return list(self._members)

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def __getitem__(self, name: str) -> np.ndarray:
        member, (shape, fortran, dtype, start) = self._members[name], self.header(name)
        count = math.prod(shape)
        # Read the whole member, so that zipfile compares the checksum.
        data = self._file.read(member)
        if not count or not dtype.itemsize:
            return np.zeros(shape, dtype)
        return np.frombuffer(data, dtype, count, start).reshape(shape, order="F" if fortran else "C")

    def header(self, name: str) -> tuple[tuple[int, ...], bool, np.dtype, int]:
        """Returns an array's shape, whether in Fortran order, dtype and start; ValueError if the size contradicts."""
        member = self._members[name]
        with self._file.open(member) as opened:
            shape, fortran, dtype, start = _header(opened.read(_HEADER))
        if start + math.prod(shape) * dtype.itemsize != member.file_size:
            raise ValueError(
                f"{name[:80]!r} is {dtype}{list(shape)} by its header, its {member.file_size} bytes are another size"
            )
        return shape, fortran, dtype, start

    def check(self, name: str) -> None:
        """Reads an array a part at a time and compares its checksum; keeps nothing."""
        self.header(name)
        with self._file.open(self._members[name]) as opened:
            while opened.read(_PART):  # At the end, zipfile compares.
                pass


class Arrays(Mapping[str, np.ndarray]):
    """Arrays of a file that stay in it: each access reads one, so that they need not be in memory together."""

    def __init__(self, path: str | os.PathLike, names: Iterable[str]):
        self._path, self._names = path, dict.fromkeys(names)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        with opened(self._path) as archive:
            return archive[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@contextlib.contextmanager
def opened(path: str | os.PathLike) -> Iterator[Archive]:
    """Opens an .npz file.

    Raises:
      OSError, ValueError, zipfile.BadZipFile and others (common.untrusted.NPZ_DAMAGE): it is damaged or invalid.
    """
    with zipfile.ZipFile(path) as file:
        yield Archive(file, os.path.getsize(path))


def write(file: BinaryIO, arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Writes an .npz file as np.savez does, but takes the arrays one after another."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def read(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Returns all arrays of an .npz file; raises the same errors as `opened`."""
    with opened(path) as archive:
        return {name: archive[name] for name in archive.files}


def _header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Parses a member's first bytes; returns (shape, whether in Fortran order, dtype, offset of the numbers)."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"an array's header has version {version}")
    try:
        shape, fortran, dtype = readers[version](stream)
    except (SyntaxError, RecursionError, MemoryError, AttributeError, IndexError) as error:
        raise ValueError(f"an array's header cannot be read ({type(error).__name__})") from error
    if dtype.hasobject:
        raise ValueError("an array holds Python's objects, which only a pickle has")
    if any(side < 0 for side in shape):
        raise ValueError(f"an array has the shape {shape}")
    return shape, fortran, dtype, stream.tell()
