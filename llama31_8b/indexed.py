"""Reads and writes tokens as Megatron's indexed data sets, PREFIX.idx and PREFIX.bin. TensorFlow-free.

The format is little-endian (Megatron-LM core_r0.11.0 megatron/core/datasets/indexed_dataset.py). PREFIX.idx holds:

    9 bytes     MAGIC
    uint64      version, 1
    uint8       code of the tokens' type
    uint64      S, number of sequences
    uint64      D, number of documents + 1
    int32 [S]   length of each sequence in tokens
    int64 [S]   place of each sequence in PREFIX.bin, in bytes
    int64 [D]   first sequence of each document; the last entry is S

PREFIX.bin holds the tokens of all sequences, one after another. Text has one sequence per document.
"""

import dataclasses
import functools
import os
import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from common.errors import UserError
from common.files import whole

MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
# Codes of the integers; 6 and 7 are float64 and float32, which are not tokens.
CODES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
_HEADER = np.dtype([("version", "<u8"), ("code", "u1"), ("sequences", "<u8"), ("documents", "<u8")])
_START = len(MAGIC) + _HEADER.itemsize
_LEAST_OF_INT32 = (
    65_500  # A vocabulary of this size and more has int32 tokens, a smaller one uint16 (optimal_dtype).
)
_FIX = "fill the folder with llama31_8b/init_datasets.sh, or convert the text again"


@dataclasses.dataclass(frozen=True)
class Index:
    """The content of PREFIX.idx.

    Attributes:
      prefix: path without suffix.
      dtype: type of a token in PREFIX.bin.
      lengths: tokens of each sequence, int32 [S].
      places: byte at which each sequence starts, int64 [S].
    """

    prefix: Path
    dtype: np.dtype
    lengths: np.ndarray
    places: np.ndarray

    @functools.cached_property
    def tokens(self) -> int:
        """Returns the number of tokens in all sequences."""
        return int(self.lengths.sum(dtype=np.int64))


def paths(prefix: str | os.PathLike) -> tuple[Path, Path]:
    """Returns the paths of the index and of the tokens."""
    return Path(f"{os.fspath(prefix)}.idx"), Path(f"{os.fspath(prefix)}.bin")


def read_index(prefix: str | os.PathLike) -> Index:
    """Reads PREFIX.idx and compares it with the size of PREFIX.bin, which it does not open.

    Raises UserError if one of the files is missing, the index is damaged or does not hold text, or PREFIX.bin has
    another size than the index says.
    """
    index, tokens = paths(prefix)
    for path in (index, tokens):
        if not path.is_file():
            raise UserError(f"{path}: no such file; {_FIX}")
    try:
        content = np.memmap(index, np.uint8, "r") if index.stat().st_size else np.zeros(0, np.uint8)
        size = tokens.stat().st_size
    except OSError as error:
        raise UserError(f"{index}: cannot read it: {error.strerror}; {_FIX}") from error
    if content[: len(MAGIC)].tobytes() != MAGIC or len(content) < _START:
        raise UserError(f"{index}: is not an index of Megatron's format (it starts with MMIDIDX); {_FIX}")
    header = content[len(MAGIC) : _START].view(_HEADER)[0]
    if header["version"] != _VERSION:
        raise UserError(f"{index}: version {header['version']}, this program reads {_VERSION}; {_FIX}")
    if int(header["code"]) not in CODES:
        raise UserError(f"{index}: code {header['code']} of the tokens' type is not an integer's; {_FIX}")
    result = Index(Path(prefix), np.dtype(CODES[int(header["code"])]), *_arrays(index, content, header))
    if size != result.tokens * result.dtype.itemsize:
        expected = f"{result.tokens * result.dtype.itemsize} bytes by {index.name}"
        raise UserError(f"{tokens}: {size} bytes, must have {expected}; copy or download both files again")
    return result


def _arrays(path: Path, content: np.ndarray, header: np.void) -> tuple[np.ndarray, np.ndarray]:
    """Returns lengths and places of the sequences; raises UserError if the numbers contradict each other."""
    sequences, documents = int(header["sequences"]), int(header["documents"])
    expected = _START + 12 * sequences + 8 * documents
    if len(content) != expected:
        reason = f"{sequences} sequences and {documents} entries of documents take {expected} bytes"
        raise UserError(f"{path}: {len(content)} bytes, but {reason}; {_FIX}")
    first, second = _START + 4 * sequences, _START + 12 * sequences
    lengths = content[_START:first].view("<i4")
    places = content[first:second].view("<i8")
    starts = content[second:].view("<i8")
    if not documents or starts[0] != 0 or starts[-1] != sequences or np.any(np.diff(starts) < 0):
        raise UserError(f"{path}: its documents do not cover its {sequences} sequences; {_FIX}")
    item = np.dtype(CODES[int(header["code"])]).itemsize
    steps = lengths[:-1].astype(np.int64) * item
    if sequences and (places[0] != 0 or lengths.min() < 0 or not np.array_equal(np.diff(places), steps)):
        raise UserError(f"{path}: the sequences' lengths do not match their places; {_FIX}")
    return lengths, places


def dtype_for(vocab_size: int) -> np.dtype:
    """Returns the type that Megatron stores tokens of such a vocabulary in."""
    return np.dtype(np.int32 if vocab_size >= _LEAST_OF_INT32 else np.uint16)


def write(prefix: str | os.PathLike, documents: Iterable[np.ndarray], dtype: np.dtype) -> int:
    """Writes documents, integers [n] each, as one sequence each; returns the number of tokens.

    Both files appear when they are complete. Raises OSError if they cannot be written.
    """
    index, tokens = paths(prefix)
    lengths = []
    with whole(tokens) as tokens_file, whole(index) as index_file:
        with open(tokens_file, "wb") as file:
            for document in documents:
                lengths.append(len(document))
                file.write(np.ascontiguousarray(document, dtype).tobytes())
        index_file.write_bytes(_index_bytes(np.array(lengths, "<i4"), np.dtype(dtype)))
    return sum(lengths)


def _index_bytes(lengths: np.ndarray, dtype: np.dtype) -> bytes:
    code = next(code for code, kind in CODES.items() if kind == dtype)
    header = np.array([(_VERSION, code, len(lengths), len(lengths) + 1)], _HEADER)
    ends = np.cumsum(lengths, dtype="<i8") * dtype.itemsize
    places = ends - lengths.astype("<i8") * dtype.itemsize
    starts = np.arange(len(lengths) + 1, dtype="<i8")
    return MAGIC + b"".join(part.tobytes() for part in (header, lengths, places, starts))


class BadTokensError(ValueError):
    """Tokens that cannot be read, or are not in the vocabulary; TensorFlow reports it as InvalidArgumentError."""


class Reader:
    """Reads pieces of PREFIX.bin, which it opens at the first read; threads may share it.

    Attributes:
      fault: the first BadTokensError, or None.
    """

    def __init__(self, index: Index, vocab_size: int):
        self._index, self._vocab_size = index, vocab_size
        self.fault: BadTokensError | None = None
        self._opening, self._opened = threading.Lock(), -1

    @property
    def _file(self) -> int:
        with self._opening:
            if self._opened < 0:
                self._opened = os.open(paths(self._index.prefix)[1], os.O_RDONLY)
        return self._opened

    def __del__(self):
        if self._opened >= 0:
            os.close(self._opened)

    def read(self, pieces: Iterable[tuple[int, int, int]]) -> np.ndarray:
        """Returns the tokens of (sequence, first token, number of tokens) pieces, one after another, int32 [n].

        Raises BadTokensError if the file has become shorter, or a token is not in the vocabulary.
        """
        try:
            tokens = np.concatenate([self._piece(*piece) for piece in pieces])
            if tokens.size and not 0 <= int(tokens.min()) <= int(tokens.max()) < self._vocab_size:
                wrong = int(tokens.max() if tokens.min() >= 0 else tokens.min())
                reason = f"is not in the vocabulary of {self._vocab_size}"
                raise BadTokensError(
                    f"{self._name}: token {wrong} {reason}; set --config.vocab_size, or {_FIX}"
                )
        except OSError as error:
            self.fault = BadTokensError(f"{self._name}: cannot read it: {error.strerror}; {_FIX}")
            raise self.fault from error
        except BadTokensError as error:
            self.fault = error
            raise
        return tokens.astype(np.int32)

    @property
    def _name(self) -> Path:
        return paths(self._index.prefix)[1]

    def _piece(self, sequence: int, first: int, count: int) -> np.ndarray:
        dtype = self._index.dtype
        place = int(self._index.places[sequence]) + first * dtype.itemsize
        data = os.pread(self._file, count * dtype.itemsize, place)
        if len(data) != count * dtype.itemsize:
            raise BadTokensError(f"{self._name}: ends at byte {place + len(data)}, too early; {_FIX}")
        return np.frombuffer(data, dtype)
