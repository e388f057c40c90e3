"""Knows the names of splits: which folder, list, file or word means training, and which evaluation. TensorFlow-free."""

import collections
import re
from collections.abc import Mapping
from pathlib import Path, PurePath

TESTS = ("test", "testing")
# Usual names of a split that the user made.
_TRAIN, _BOTH = ("train", "training"), ("trainval",)
_HELD = ("val", "valid", "validate", "validation", "eval", "evaluation", "dev")
TRAIN, EVAL = (*_TRAIN, *_BOTH), (*_HELD, *TESTS)
# Words beside a split's in a folder's name, as in obj_train_data and images_val2017. "labels" hold no pictures.
_BESIDE = {
    *("images", "image", "img", "imgs", "pictures", "photos", "videos", "clips", "frames"),
    *("obj", "data", "set", "split", "autosplit", "list"),
}
_COMPOUND = re.compile(rf"^({'|'.join((*TRAIN, *EVAL))})(set|data|images|imgs|list)$")


def part_of(name: str) -> int | None:
    """Returns the part that a split's name means: 0 for training, 1 for evaluation; None for another name."""
    return next((part for part, names in enumerate((TRAIN, EVAL)) if name.lower() in names), None)


def word_of(path: str) -> str:
    """Returns the split's word in a path, such as "val" of annotations/instances_val2017; "" for none or both parts."""
    words = [word for word in _words(path) if part_of(word) is not None]
    return words[-1] if len({part_of(word) for word in words}) == 1 else ""


def of_folder(name: str) -> str:
    """Returns the split's word if a folder's name has no other word: train2017, obj_train_data; else ""."""
    return word_of(name) if names_no_class(name) else ""


def names_no_class(path: str) -> bool:
    """Returns whether a path has only words of splits and of pictures in general, such as images/val2017."""
    return all(word in _BESIDE or part_of(word) is not None for word in _words(path))


def _words(path: str) -> list[str]:
    """Returns a path's words in lower case; trainSet has two, of trainset "train" remains."""
    words = re.findall(r"[^\W\d_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", path).lower())
    return [_COMPOUND.sub(r"\1", word) for word in words]


def of_path(path: str) -> str:
    """Returns the word of the innermost folder that is a split's, such as "val" of images/val/0.jpg; else ""."""
    return next(filter(None, (of_folder(name) for name in PurePath(path).parts[-2::-1])), "")


def pair(words: Mapping[Path, str]) -> tuple[list[Path], list[Path]]:
    """Returns the paths to train and to evaluate on, by {path: its split's word}; ([], []) unless there are both.

    trainval has the pictures of train and val, so it goes with a test split alone.
    """
    for parts in ((_TRAIN, _HELD), (_BOTH, TESTS), (_TRAIN, TESTS)):
        paths = tuple([path for one in names for path in words if words[path] == one] for names in parts)
        if all(paths):
            return paths
    return [], []


def pairs(names: Mapping[Path, str]) -> dict[str, tuple[list[Path], list[Path]]]:
    """Returns {rest of the name: `pair`} of the paths whose names, {path: name}, differ in the split's word alone."""
    groups = collections.defaultdict(dict)
    for path, name in names.items():
        groups[name.lower().replace(word_of(name), "")][path] = word_of(name)
    both = {rest: pair(words) for rest, words in groups.items()}
    return {rest: parts for rest, parts in both.items() if all(parts)}


def distance(word: str, path: str) -> int:
    """Returns how far a path is from the split of `word`: 0 the same word, 1 the same part, 2 none, 3 the other."""
    other = word_of(path)
    if not word or word == other:
        return 0
    return 2 if not other else 1 if part_of(word) == part_of(other) else 3
