"""Suggests the intended name or value for a misspelled name or a wrongly scaled value."""

import re
from collections.abc import Iterable, Sequence

# Names that published logs or frameworks use -> the names in the rules.
_ALIASES = {
    "mask": "maskrcnn", "mask_rcnn": "maskrcnn", "resnet50": "resnet", "imagenet": "resnet", "nmt": "gnmt",
    "rnn_translator": "gnmt", "single_stage_detector": "ssd", "tsm": "tsm_kinetics", "close": "closed",
    "dlrm_v4_hstu": "dlrmv4", "bf16": "bfloat16", "float64": "fp64", "double": "fp64", "float32": "fp32",
    "float": "fp32", "float16": "fp16", "half": "fp16", "float8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
    "fp4": "nvfp4", "on-prem": "onprem", "on_prem": "onprem", "accuracy": "eval_accuracy",
    "batch_size": "global_batch_size",
}  # fmt: skip


# Names of number formats, which differ by a letter.
_FORMAT = re.compile(r"[a-z]*(fp|float|int|tf|bf)_?\d+.*")


def nearest(word: object, names: Iterable[str]) -> str | None:
    """Returns the known name that `word` probably means, or None."""
    if not isinstance(word, str):
        return None
    names = list(names)
    plain = word.strip().lower()
    if plain in names:
        return plain
    if _ALIASES.get(plain) in names:
        return _ALIASES[plain]
    if _FORMAT.fullmatch(plain):
        return None
    from difflib import get_close_matches  # imported only for a wrong name, so that a clean check starts fast

    matches = get_close_matches(plain[:100], names, n=1, cutoff=0.75)
    return matches[0] if matches else None


def hint(words: Iterable[str], names: Sequence[str], otherwise: str = "") -> str:
    """Returns the end of an error about an unknown name: the known one that a word probably means, or `otherwise`."""
    near = next(filter(None, (nearest(word, names) for word in words)), None)
    return f"did you mean {near}?" if near else otherwise or f"known: {', '.join(names)}"


def listed(names: Sequence[str], most: int) -> str:
    """Returns the first names and how many more there are: "a, b and 3 more"."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def as_fraction(value: object, holds) -> float | None:
    """Returns the fraction for a percentage (75.9 -> 0.759) if the fraction passes `holds`, else None.

    If 1e-9 passes `holds`, the target is an upper bound on a loss. A loss may be above 1, so the result is None.
    """
    if isinstance(value, (int, float)) and 1 < value <= 100 and not holds(1e-9):
        fraction = float(repr(value / 100)[:12])
        return fraction if holds(fraction) else None
    return None


# Format characters, among them those that turn the direction of text, and control characters, which no reader sees.
_HIDDEN = frozenset(("Cf", "Cc"))


def hidden_characters(text: str) -> str:
    """Names the invisible and direction-changing characters of a name, as "U+202E RIGHT-TO-LEFT OVERRIDE"; or ""."""
    import unicodedata  # not needed for a plain name

    if text.isascii() and text.isprintable():
        return ""
    characters = dict.fromkeys(one for one in text[:1000] if unicodedata.category(one) in _HIDDEN)
    names = (f"U+{ord(one):04X} {unicodedata.name(one, 'control character')}" for one in list(characters)[:4])
    return ", ".join(names)
