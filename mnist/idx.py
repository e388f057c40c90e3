"""Reads and writes MNIST's idx files, plain or gzipped.

An idx file has a big-endian header (magic number and sizes), then unsigned bytes. The magic number is 2051 for images
(sizes N, rows, columns) and 2049 for labels (size N).
"""

import gzip
import os
import struct
import zlib
from pathlib import Path

import numpy as np

from common.errors import UserError
from common.files import whole

_GZIP = b"\x1f\x8b"  # RFC 1952, section 2.3.1.
IMAGES, LABELS = 2051, 2049
# Official file names, without ".gz": {split: (images, labels)}.
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_PICTURES = (".png", ".jpg", ".jpeg", ".bmp")
FIX = "make it with mnist/init_datasets.sh, or write your own with mnist.idx.write"


def find(folder: str | os.PathLike, name: str) -> Path:
    """Returns the path of `name` or `name`.gz in `folder`; also train-images.idx3-ubyte, as unpackers name it.

    Raises UserError if the folder has none.
    """
    for form in (name, name.replace("-idx", ".idx")):
        # Archives may unpack a file into a folder of its name.
        for path in (Path(folder) / form, Path(folder) / f"{form}.gz", Path(folder) / form / form):
            if path.is_file():
                return path
    raise UserError(f"{Path(folder) / name}[.gz] is not there; {_instead(Path(folder), name)}")


def _instead(folder: Path, name: str) -> str:
    """Returns what to do for a missing file, by what a folder has in its place."""
    forms = (
        f"{deep}*{form}*" for form in (name, name.replace("-idx", ".idx")) for deep in ("", "*/", "*/*/")
    )
    near = next((path for form in forms for path in sorted(folder.glob(form)) if path.is_file()), None)
    if near:
        # `find` sees a file in a folder of its name from the folder around that.
        place = near.parent.parent if near.parent.name == near.name else near.parent
        reads = place != folder and near.name.removesuffix(".gz") in (name, name.replace("-idx", ".idx"))
        return f"name {place}" if reads else f"rename {near} to it"
    inside = (path for path in sorted(folder.glob("**/*")) if not path.name.startswith("."))
    other = next(
        (path for path in inside if path.suffix.lower() in (*_PICTURES, ".csv", ".npz", ".zip", ".mat")), None
    )
    if other and other.suffix.lower() in _PICTURES:
        return f"{other} is a picture: for folders of pictures, `timetotrain data resnet` makes a data set"
    return f"{other} is not read; write its digits as idx files with mnist.idx.write" if other else FIX


def read(path: str | os.PathLike, magic: int) -> np.ndarray:
    """Reads an idx file: uint8 [N, rows, columns] for magic IMAGES, [N] for LABELS.

    Raises UserError if the file cannot be read, or its magic number or length is wrong.
    """
    path = Path(path)
    try:
        data = path.read_bytes()  # Browsers unpack a file and keep its name.
        data = gzip.decompress(data) if data.startswith(_GZIP) else data
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UserError(f"{path}: cannot read it ({reason}); {FIX}") from error
    rank = 3 if magic == IMAGES else 1
    header = 4 * (1 + rank)
    if len(data) < header:
        raise UserError(f"{path}: {len(data)} bytes, shorter than an idx header of {header}; {FIX}")
    file_magic, *shape = struct.unpack_from(f">{1 + rank}I", data)
    if file_magic != magic:
        raise UserError(f"{path}: magic number {file_magic}, not {magic}; is it another file? {FIX}")
    expected = header + int(np.prod(shape, dtype=np.int64))
    if len(data) != expected:
        raise UserError(
            f"{path}: {len(data)} bytes, but its header says {'x'.join(map(str, shape))}, which makes {expected}; {FIX}"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def shape(path: str | os.PathLike) -> tuple[int, ...]:
    """Returns the sizes in the header of an idx file of images, (N, rows, columns).

    It does not read the pixels: nothing of the training data is read before the clock starts.
    Raises UserError if the file cannot be read, or is none of images.
    """
    path = Path(path)
    try:
        with open(path, "rb") as raw:
            packed = raw.read(len(_GZIP)) == _GZIP
        with gzip.open(path) if packed else open(path, "rb") as file:
            magic, *sizes = struct.unpack(">4I", file.read(16))
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise UserError(f"{path}: cannot read it ({error}); {FIX}") from error
    if magic != IMAGES:
        raise UserError(f"{path}: magic number {magic}, not {IMAGES}; is it another file? {FIX}")
    return tuple(sizes)


def load(folder: str | os.PathLike, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads "train" or "test": (images uint8 [N, rows, columns], labels uint8 [N]).

    Raises UserError if a file is missing or damaged (see `read`), or the numbers of labels and images differ.
    """
    images_path, labels_path = (find(folder, name) for name in FILES[split])
    images, labels = read(images_path, IMAGES), read(labels_path, LABELS)
    if len(images) != len(labels):
        raise UserError(f"{labels_path}: {len(labels)} labels for {len(images)} images; {FIX}")
    return images, labels


def write(path: str | os.PathLike, array: np.ndarray) -> None:
    """Writes uint8 [N, rows, columns] or [N] as an idx file, atomically; gzipped if the name ends in .gz."""
    path = Path(path)
    magic = IMAGES if array.ndim == 3 else LABELS
    data = struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.astype(np.uint8).tobytes()
    # mtime=0 keeps the time out of the header, so that equal arrays give equal files.
    with whole(path) as partial:
        partial.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def counts(folder: Path, held_out: int) -> dict[str, int]:
    """Reads numbers, size and classes from the files; the test set is not read if a part is held out.

    Returns {} if a file is missing. Raises UserError if one is damaged, or the images are not of one square size.
    """
    splits = ["train"] if held_out else ["train", "test"]
    try:
        paths = [[find(folder, name) for name in FILES[split]] for split in splits]
    except UserError:  # The input names the missing file.
        return {}
    shapes = [shape(images) for images, _ in paths]
    classes = 1 + max(int(read(labels, LABELS).max(initial=0)) for _, labels in paths)
    if len({size[1:] for size in shapes}) > 1 or len(set(shapes[0][1:])) > 1:
        sizes = ", ".join(f"{size[1]}x{size[2]}" for size in shapes)
        raise UserError(f"{folder}: images of {sizes}; scale all to one square size")
    return {
        "num_train_examples": shapes[0][0] - held_out,
        "num_eval_examples": held_out or shapes[1][0],
        "image_size": shapes[0][1],
        "num_classes": classes,
    }
