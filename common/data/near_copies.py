"""Finds near copies among pictures, mirrored ones too, so that a split keeps them on one side."""

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from PIL import Image

from common.data.report import Report

SIDE = 16  # Pixels of a thumbnail's side.
NO_THUMBNAIL = bytes(SIDE * SIDE)  # Without contrast, so it is like no other.
# Pixels of a picture's side that a thumbnail is made from; more cost time and show no more.
_SAMPLES = 8 * SIDE
# Pictures are nearly the same if their thumbnails' mean difference is less than this part of their contrast (standard
# deviation), and their contrast is enough to tell. Another JPEG quality or size of one photograph gives 0.01; frames of
# a film a second apart give more. This project's choice, like the number of neighbors compared.
_NEAR, _LEAST_CONTRAST, _NEIGHBORS = 0.04, 6.0, 16
_SHOWN = 3  # Pairs in a line.
_AT_ONCE = 4096  # Pairs compared at once, so that many alike do not fill the memory.


def thumbnail(pixels: np.ndarray) -> bytes:
    """Returns the gray thumbnail of a picture uint8 [H, W, 3]: SIDE x SIDE bytes."""
    rows, columns = (max(1, side // _SAMPLES) for side in pixels.shape[:2])
    image = Image.fromarray(np.ascontiguousarray(pixels[::rows, ::columns])).convert("L")
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX)).tobytes()


def pairs(thumbnails: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Yields pairs of indices of pictures that are nearly the same, the smaller index first.

    Only pictures that agree in a quarter of a coarse picture are compared, with _NEIGHBORS of the nearest brightness.
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
    earlier: set[tuple[int, int]] = set()
    for quarter in range(keys.shape[1]):
        order = np.lexsort((light, keys[:, quarter]))
        for step in range(1, min(_NEIGHBORS, len(order) - 1) + 1):
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
                if one not in earlier:
                    earlier.add(one)
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
    first: dict[str, int] = {}
    for number, name in enumerate(names):
        if name and first.setdefault(name, number) != number:
            yield first[name], number


# Exporters' names of augmented copies: NAME.rf.HASH of Roboflow, NAME_aug1 and NAME_flipped of others.
_COPY = re.compile(
    r"(\.rf\.[0-9A-Za-z]{8,}|[-_ ](aug|augmented|flip|flipped|rot|rotated|crop|cropped)[-_ ]?\d*)$", re.I
)
# The end of a clip's name that numbers it within its film: film0_003, v_Run_g01_c02.
_PART = re.compile(r"[-_ ](c|clip|part|seg|segment|scene|shot)?\d+$", re.I)
# Films of a class; fewer names before the numbers may as well be one's own counting. This project's choice.
_LEAST_FILMS = 3


def original(path: str) -> str:
    """Returns the path of a picture of which this is a copy by its name, without suffix; else its own."""
    return _COPY.sub("", os.path.splitext(path)[0])


def films(stems: Sequence[str]) -> list[str]:
    """Returns the film of each clip of a class by the clips' names; "" for each if the names tell none."""
    levels = [list(stems)]
    while any(map(_PART.search, levels[-1])):
        levels.append([_PART.sub("", name) for name in levels[-1]])
    candidates = (names for names in reversed(levels[1:]) if _LEAST_FILMS <= len(set(names)) < len(names))
    return next(candidates, [""] * len(levels[0]))


def groups(thumbnails: Sequence[bytes], names: Sequence[str]) -> list[str]:
    """Returns a group for each picture: one of near copies or of a group that the user gives stays together."""
    near = list(pairs(thumbnails))
    return [str(one) for one in joined(len(thumbnails), itertools.chain(near, same_names(names)))]


def suspect_pairs(report: Report, what: str, examples: Iterable[tuple[str, str]]) -> None:
    """Notes pairs of examples, of which the line names the first three."""
    both = [f"{one} and {other}" for one, other in examples]
    if both:
        report.suspect(what, "; ".join(both[:_SHOWN]), len(both))


# Of an example: (its name, a digest of its content, its thumbnail, its class or "").
Mark = tuple[str, str, bytes, str]


def report(report: Report, train: Sequence[Mark], held_out: Sequence[Mark], kind: str = "picture") -> None:
    """Notes contents that are the same or nearly so in both parts of a split, or the same in two classes."""
    every, first = [*train, *held_out], {digest: name for name, digest, *_ in train}
    same = ((first[digest], name) for name, digest, *_ in held_out if digest in first)
    suspect_pairs(report, f"the same {kind} to train and to evaluate on", same)
    near = pairs([thumbnail for _, _, thumbnail, _ in every])
    across = (pair for pair in near if (pair[0] < len(train)) != (pair[1] < len(train)))
    names = ((every[one][0], every[other][0]) for one, other in across)
    suspect_pairs(report, f"nearly the same {kind} to train and to evaluate on", names)
    owners: dict[str, tuple[str, str]] = {}
    for name, digest, _, label in every:
        other, other_label = owners.setdefault(digest, (name, label))
        if name != other and label and other_label and label != other_label:
            report.suspect(f"the same {kind} in two classes", f"{other} ({other_label}) and {name} ({label})")
