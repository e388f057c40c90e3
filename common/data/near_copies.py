"""Finds near copies among pictures, mirrored ones too, so that a split keeps them on one side."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from PIL import Image

from common.data.report import Report

SIDE = 16  # Pixels of a thumbnail's side.
# Pixels of a picture's side that a thumbnail is made from; more cost time and show no more.
_SAMPLES = 8 * SIDE
# Pictures are nearly the same if their thumbnails' mean difference is less than this part of their contrast (standard
# deviation), and their contrast is enough to tell. Another JPEG quality or size of one photograph gives 0.01; frames of
# a film a second apart give more. This project's choice, like the number of neighbours compared.
_NEAR, _LEAST_CONTRAST, _NEIGHBOURS = 0.04, 6.0, 16
_AT_ONCE = 4096  # Pairs compared at once, so that many alike do not fill the memory.


def thumbnail(pixels: np.ndarray) -> bytes:
    """Returns the grey thumbnail of a picture uint8 [H, W, 3]: SIDE x SIDE bytes."""
    rows, columns = (max(1, side // _SAMPLES) for side in pixels.shape[:2])
    image = Image.fromarray(np.ascontiguousarray(pixels[::rows, ::columns])).convert("L")
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX)).tobytes()


def pairs(thumbnails: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Yields pairs of indices of pictures that are nearly the same, the smaller index first.

    Only pictures that agree in a quarter of a coarse picture are compared, with _NEIGHBOURS of the nearest brightness.
    """
    if not thumbnails:
        return
    plain = np.frombuffer(b"".join(thumbnails), np.uint8).reshape(-1, SIDE, SIDE).astype(np.float32)
    number = np.flatnonzero(plain.std((1, 2)) >= _LEAST_CONTRAST)
    both = np.concatenate([plain[number], plain[number][:, :, ::-1]])
    owners = np.concatenate([number, number])
    coarse = both.reshape(-1, 8, 2, 8, 2).mean((2, 4))
    bits = np.diff(np.concatenate([coarse, coarse[:, :, :1]], 2), axis=2) > 0
    keys = np.packbits(bits.reshape(len(both), 64), axis=1).view(np.uint16)
    contrast, light = both.std((1, 2)), both.mean((1, 2))
    seen: set[tuple[int, int]] = set()
    for quarter in range(keys.shape[1]):
        order = np.lexsort((light, keys[:, quarter]))
        for step in range(1, min(_NEIGHBOURS, len(order) - 1) + 1):
            first, second = order[:-step], order[step:]
            same = (keys[first, quarter] == keys[second, quarter]) & (owners[first] != owners[second])
            first, second = first[same], second[same]
            difference = np.zeros(len(first), np.float32)
            for at in range(0, len(first), _AT_ONCE):
                some = slice(at, at + _AT_ONCE)
                difference[some] = np.abs(both[first[some]] - both[second[some]]).mean((1, 2))
            close = difference < _NEAR * np.minimum(contrast[first], contrast[second])
            for pair in zip(owners[first[close]].tolist(), owners[second[close]].tolist()):
                one = min(pair), max(pair)
                if one not in seen:
                    seen.add(one)
                    yield one


def joined(count: int, links: Iterable[tuple[int, int]]) -> list[int]:
    """Returns for each of `count` items the smallest number of the items that links join it with."""
    first = list(range(count))

    def root(item: int) -> int:
        while first[item] != item:
            first[item] = first[first[item]]
            item = first[item]
        return item

    for one, other in links:
        low, high = sorted((root(one), root(other)))
        first[high] = low
    return [root(item) for item in range(count)]


def same_names(names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yields links between items of one name; "" is not a name."""
    seen: dict[str, int] = {}
    for number, name in enumerate(names):
        if name and seen.setdefault(name, number) != number:
            yield seen[name], number


def groups(thumbnails: Sequence[bytes], given: Sequence[str]) -> list[str]:
    """Returns a group for each picture: one of near copies or of a group that the user gives stays together."""
    near = list(pairs(thumbnails))
    return [str(one) for one in joined(len(thumbnails), itertools.chain(near, same_names(given)))]


def report_across(report: Report, train: Mapping[str, bytes], held: Mapping[str, bytes]) -> None:
    """Notes pictures to evaluate on that are nearly one to train on; both are {name: thumbnail}."""
    names = [*train, *held]
    for one, other in pairs([*train.values(), *held.values()]):
        if (one < len(train)) != (other < len(train)):
            both = f"{names[one]} and {names[other]}"
            report.suspect("nearly the same picture to train and to evaluate on", both)
