"""Orders windows of tokens as Megatron does, or epoch by epoch. TensorFlow-free.

A stream is shuffled documents end to end. Window i of N tokens has the stream's tokens N i to N (i + 1): N inputs and,
one further, N labels. The windows are shuffled, too. The reference mixes the documents of several epochs
(Megatron-LM core_r0.11.0 megatron/core/datasets/gpt_dataset.py and helpers.cpp).
"""

import dataclasses
import functools
import math
from collections.abc import Iterator

import numpy as np

# A file list with weights asks for this many times the samples that a run reads (blended_megatron_dataset_builder.py).
BLEND = 1.005
_APART = 0.8  # The last epoch is apart if it gives less than this part of an epoch's windows.
_CHUNK = 1 << 22  # Documents whose lengths are added at a time.
Piece = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Stream:
    """Windows of a stream of documents, in their order.

    Attributes:
      lengths: tokens of each document, int32 [documents].
      length: tokens of a window, N.
      documents: the documents in the stream's order, int32.
      places: place in `documents` at which each window starts, in the stream's order.
      offsets: first token of each window in its first document.
      windows: the windows' order.
    """

    lengths: np.ndarray
    length: int
    documents: np.ndarray
    places: np.ndarray
    offsets: np.ndarray
    windows: np.ndarray

    def __len__(self) -> int:
        return len(self.windows)

    def pieces(self, number: int) -> Iterator[Piece]:
        """Yields (document, first token, number of tokens) of the N + 1 tokens of the window at `number`."""
        window = int(self.windows[number])
        place, offset, needed = int(self.places[window]), int(self.offsets[window]), self.length + 1
        while needed:
            document = int(self.documents[place])
            count = min(int(self.lengths[document]) - offset, needed)
            if count:
                yield document, offset, count
            place, offset, needed = place + 1, 0, needed - count


def window_count(tokens: int, length: int) -> int:
    """Returns the whole windows of a stream: each has one further token, which the next window shares."""
    return max(tokens - 1, 0) // length


def stream(lengths: np.ndarray, length: int, documents: np.ndarray, windows: np.ndarray) -> Stream:
    """Returns the stream of `documents`; its first len(windows) windows are read in the order of `windows`."""
    places, offsets = np.empty(len(windows), np.int64), np.empty(len(windows), np.int32)
    base = done = 0
    for begin in range(0, len(documents), _CHUNK):
        sizes = lengths[documents[begin : begin + _CHUNK]]
        ends = base + np.cumsum(sizes, dtype=np.int64)
        last = min(len(windows), -(-int(ends[-1]) // length))
        starts = np.arange(done, last, dtype=np.int64) * length
        at = np.searchsorted(ends, starts, "right")
        places[done:last] = begin + at
        offsets[done:last] = starts - (ends[at] - sizes[at])
        base, done = int(ends[-1]), max(done, last)
    return Stream(lengths, length, documents, places, offsets, windows)


def in_file_order(lengths: np.ndarray, length: int) -> Stream:
    """Returns one epoch's windows as the file has them, without a shuffle."""
    count = window_count(int(lengths.sum(dtype=np.int64)), length)
    return stream(lengths, length, np.arange(len(lengths), dtype=np.int32), np.arange(count, dtype=np.uint32))


def reference(lengths: np.ndarray, length: int, samples: int, seed: int) -> Stream:
    """Returns at least `samples` windows in Megatron's order for a seed.

    One numpy.random.RandomState shuffles the documents of all epochs but the last, those of the last, and the windows
    likewise; or everything at once if the last epoch gives at least `_APART` of its windows. The memory is 4 bytes per
    document and epoch, and 16 per window.
    """
    tokens = int(lengths.sum(dtype=np.int64))
    epochs = -(-(samples * length + 1) // tokens)
    before = window_count((epochs - 1) * tokens, length)
    total = window_count(epochs * tokens, length)
    apart = epochs > 1 and samples - before < int(_APART * window_count(tokens, length))
    state = np.random.RandomState(seed)
    parts = (epochs - 1, 1) if apart else (epochs,)
    documents = np.concatenate([_shuffled_documents(len(lengths), part, state) for part in parts])
    borders = (0, before, total) if apart else (0, total)
    windows = np.concatenate([_shuffled(state, a, b) for a, b in zip(borders, borders[1:])])
    return stream(lengths, length, documents, windows)


def _shuffled_documents(count: int, epochs: int, state: np.random.RandomState) -> np.ndarray:
    documents = np.tile(np.arange(count, dtype=np.int32), epochs)
    state.shuffle(documents)
    return documents


def _shuffled(state: np.random.RandomState, first: int, last: int) -> np.ndarray:
    windows = np.arange(first, last, dtype=np.uint32)
    state.shuffle(windows)
    return windows


class Epochs:
    """The endless order in which a run sees each document once per epoch; epoch 0 is the reference's for one epoch."""

    def __init__(self, lengths: np.ndarray, length: int, seed: int):
        self._lengths, self._length, self._seed = lengths, length, seed
        self._count = window_count(int(lengths.sum(dtype=np.int64)), length)
        self._epoch = functools.lru_cache(maxsize=2)(self._make)
        self._epoch(0)

    def __len__(self) -> int:
        """Returns the windows of an epoch."""
        return self._count

    def _make(self, epoch: int) -> Stream:
        state = np.random.RandomState([self._seed, epoch] if epoch else self._seed)
        documents = _shuffled_documents(len(self._lengths), 1, state)
        return stream(self._lengths, self._length, documents, _shuffled(state, 0, self._count))

    def pieces(self, number: int) -> Iterator[Piece]:
        """Yields the pieces of window `number` of the run, as `Stream.pieces` does."""
        epoch, place = divmod(number, self._count)
        return self._epoch(epoch).pieces(place)


def train_order(lengths: np.ndarray, length: int, order: str, samples: int, seed: int) -> Stream | Epochs:
    """Returns the order of a run that reads `samples` windows; `order` is "reference" or "one_epoch"."""
    if order == "one_epoch":
        return Epochs(lengths, length, seed)
    return reference(lengths, length, math.ceil(samples * BLEND), seed)


def eval_order(lengths: np.ndarray, length: int, order: str, samples: int, seed: int) -> Stream:
    """Returns the order of the evaluation's windows; each evaluation reads the first ones.

    "reference" shuffles them by the run's seed, as the reference's Megatron does. "one_epoch" leaves them as the file
    has them, as the reference's README says; then runs of different seeds are comparable.
    """
    if order == "one_epoch":
        return in_file_order(lengths, length)
    return reference(lengths, length, samples, seed)
